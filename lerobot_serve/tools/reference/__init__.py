# SPDX-License-Identifier: Apache-2.0
"""
Write the reference pages of docs/ from the interface files and from what the code declares. Called
by `lerobot-serve docs` and tests. Plain; one thread. Never imported by a node.
"""
