# SPDX-License-Identifier: Apache-2.0
"""
The links of a client to its servers: one that carries bytes, over ROS 2 or Zenoh, and above it the
calls and requests of the contract, once for edge, gateway, router and Python client.

`server_client` -> `link`; `zenoh` and `ros/` implement `link`. Calls block: any thread but the
executor's. Callbacks run in threads of the link: they deposit and return. A program without ROS
imports no module of `ros/`, one without Zenoh not `zenoh`.
"""
