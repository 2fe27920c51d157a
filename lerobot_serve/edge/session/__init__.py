# SPDX-License-Identifier: Apache-2.0
"""
The session with a policy server or router: connection state, one request in flight, deadlines,
failover. Down: requester -> pipeline (reads inputs/) -> transport; back: inbox -> requester ->
pipeline -> merger (into the queue). All of them drive one machine of lerobot_serve.session.
`Requester.run` is the body of the thread `request`; other threads deposit in the inbox and may
feed the connection state machine.
"""
