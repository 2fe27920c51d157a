# SPDX-License-Identifier: Apache-2.0
"""
The session with a policy server or router: connection state, one request in flight, deadlines,
failover. Called by node.py, which deposits replies and liveliness changes; `Requester.run` is the
body of the thread `request`. Reads inputs/, merges chunks into queue/. Any thread
may read and feed the connection state machine.
"""
