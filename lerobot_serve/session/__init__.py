# SPDX-License-Identifier: Apache-2.0
"""
The client's half of a session, for edge, gateway and Python client: no thread, clock or socket.

Each of them owns an object of its own and calls it in one thread, or under its lock.
"""
