# SPDX-License-Identifier: Apache-2.0
"""
Turns clients of other protocols into sessions of a policy router, or of one policy server.

    callers/           one caller: its name, turns, deadline, episodes, request and words
    upstream.py        Protocols of the router's side: Upstream and UpstreamSession
    fake_upstream.py   an Upstream without a router, for tests of doors and of users
    core.py            Gateway: admission, sessions of callers
    counters.py        what is counted, and the metrics of it
    access.py          listen address and access control of an endpoint; listener.py its socket
    door_parameters.py the table of doors, one package for each protocol; doors.py loads them
    router/            the Upstream of a router: sessions, numbers, losses
    ros/               its links over ROS 2 and Zenoh
    web/, grpc_server/ what doors over HTTP and gRPC share
    event_loop.py      the thread of all this; node.py wires it

One asyncio event loop in one thread runs all doors, the Gateway and its sessions. Threads of
ROS 2 and Zenoh only deposit with `loop.call_soon_threadsafe`. No door imports rclpy.
"""
