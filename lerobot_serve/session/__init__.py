# SPDX-License-Identifier: Apache-2.0
"""
The client's half of a session: no thread, clock or socket. Gateway and Python client use the
machine, the edge its numbers. Each owns its own and calls it in one thread, or under its lock.
"""
