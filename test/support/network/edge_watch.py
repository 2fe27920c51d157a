# SPDX-License-Identifier: Apache-2.0
"""
Watches one edge from a process on its machine: answers each line of standard input with one line
of JSON, and ends with it.

    python -m support.network.edge_watch EDGE
"""

from __future__ import annotations

import json
import sys

from rclpy.node import Node
from rclpy.time import Time

from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve_interfaces.msg import ExecutedAction
from support.nodes.edge_rig import Seen


def main(edge: str) -> None:
    runtime = NodeRuntime([])
    node = Node('edge_watch', context=runtime.context)
    runtime.add(node)
    seen = Seen(node, edge)
    runtime.spin_in_background()
    for _ in sys.stdin:
        last, played = seen.last, seen.played or [ExecutedAction()]
        policy_time = Time.from_msg(played[-1].stamp)
        found = {
            'state': last.state,
            'rung': last.rung,
            'server': last.server,
            'reason': last.reason,
            'network_ms': last.network_ms,
            'stalls': last.stalls,
            'played': len(seen.played),
            # also where the edge commands nothing meanwhile
            'without_policy_s': (node.get_clock().now() - policy_time).nanoseconds / 1e9,
        }
        print(json.dumps(found), flush=True)
    runtime.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
