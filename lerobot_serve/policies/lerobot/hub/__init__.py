# SPDX-License-Identifier: Apache-2.0
"""
A policy by its id on the Hugging Face hub: `repository` downloads it and returns its folder,
`download` is the process that does it. Only that process uses the network.
"""
