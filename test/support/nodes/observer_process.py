# SPDX-License-Identifier: Apache-2.0
"""
Somebody who looks at one edge from a process of its own: answers each line with the state of the
edge and how many actions of a policy it was seen to play, and ends with its standard input.
"""

from __future__ import annotations

import sys

from rclpy.node import Node

from lerobot_serve.ros.process.node_runtime import NodeRuntime
from support.nodes.edge_rig import Seen


def main(edge: str) -> None:
    runtime = NodeRuntime([])
    node = Node('onlooker', context=runtime.context)
    runtime.add(node)
    seen = Seen(node, edge)
    runtime.spin_in_background()
    for _ in sys.stdin:
        print(seen.last.state, len(seen.played), flush=True)
    runtime.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
