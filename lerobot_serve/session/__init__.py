# SPDX-License-Identifier: Apache-2.0
"""
The client's half of a session: no thread, clock or socket. Edge, gateway and Python client drive
the machine. Each owns its own and calls it in one thread, or under its lock.
"""
