# SPDX-License-Identifier: Apache-2.0
"""The commands of the page, by the functions of the verbs."""
