# SPDX-License-Identifier: Apache-2.0
"""
The local path: requests in shared pages, and replies through a Unix socket, between two processes
of one host.

A server offers it in its reply to OpenSession (`offer`); a client that can connect uses it for
the requests and replies of its sessions. Everything else stays with the link around it, ROS 2 or
Zenoh, which also carries what the path cannot. `endpoint` is the half of a server, `path` that of
a client, `pages` the memory between them, `frames` what passes through the socket. No ROS.
"""
