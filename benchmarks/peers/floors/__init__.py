# SPDX-License-Identifier: Apache-2.0
"""
The least that a way between two processes of one host takes: the pictures there, as many bytes as
a chunk has back. Nothing is checked, and one client is served. Each floor is run like a peer:

    python -m benchmarks.peers.floors.memfd server HOST PORT
    python -m benchmarks.peers.floors.memfd client HOST PORT SOCKET
"""
