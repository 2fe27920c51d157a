# SPDX-License-Identifier: Apache-2.0
"""
The rows of robots, routers and servers in the document of the fleet.

Pure; the poll thread.
"""
