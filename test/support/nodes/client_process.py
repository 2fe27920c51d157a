# SPDX-License-Identifier: Apache-2.0
"""A robot in a process of its own: opens a session, gets one answer, stays. To be killed."""

from __future__ import annotations

import sys

from rclpy.node import Node

from lerobot_serve.ros.process.node_runtime import NodeRuntime
from support.nodes.small_client import SmallClient


def main(server: str, name: str) -> None:
    runtime = NodeRuntime([])
    node = Node(name, context=runtime.context)
    runtime.add(node)
    runtime.spin_in_background()
    client = SmallClient(node, server, name, cameras=())
    client.open()
    client.round_trip()
    print('answered', flush=True)
    # nothing ever comes
    sys.stdin.read()
    runtime.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
