# SPDX-License-Identifier: Apache-2.0
"""
Build the network in its precision, check its weights, describe the policy, run it once.
`loader` calls each step in turn. Thread: the one that loads (`inference`).
"""
