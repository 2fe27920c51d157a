"""
The session with a policy server or router: connection state, one request in flight, deadlines,
failover. Called by node.py, which deposits replies and liveliness changes; `Requester.run` is the
body of the thread `request`. Reads inputs/, merges chunks into queue/. ConnectionState machine
may be read and fed by any thread.
"""
