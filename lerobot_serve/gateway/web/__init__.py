# SPDX-License-Identifier: Apache-2.0
"""
What the doors over HTTP share: the listening site, and who is let in. Uses aiohttp; runs on the
event loop of the gateway.
"""
