# SPDX-License-Identifier: Apache-2.0
"""
Write the reference pages docs/messages.md and docs/parameters.md from interface files and
parameter dataclasses.  Called by `lerobot-serve docs` and tests. Plain; one thread. Never
imported by a node.
"""
