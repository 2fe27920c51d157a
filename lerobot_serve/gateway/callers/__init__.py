# SPDX-License-Identifier: Apache-2.0
"""
The callers of a gateway: identity, turns, episode names, and their words for those of a policy.

The core and the doors call it, in the event loop.
"""
