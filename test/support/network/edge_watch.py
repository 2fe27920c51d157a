# SPDX-License-Identifier: Apache-2.0
"""
Watches one edge from a process on its machine: answers each line of standard input with one line
of JSON, and ends with it.

    python -m support.network.edge_watch EDGE
"""

from __future__ import annotations

from itertools import takewhile
import json
import sys

from rclpy.node import Node

from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction
from support.nodes.edge_rig import Seen


def is_fallback(action: ExecutedAction) -> bool:
    return action.rung != EdgeState.RUNG_POLICY


def main(edge: str) -> None:
    runtime = NodeRuntime([])
    node = Node('edge_watch', context=runtime.context)
    runtime.add(node)
    seen = Seen(node, edge)
    runtime.spin_in_background()
    for _ in sys.stdin:
        last = seen.last
        found = {
            'state': last.state,
            'rung': last.rung,
            'server': last.server,
            'reason': last.reason,
            'network_ms': last.network_ms,
            'stalls': last.stalls,
            'played': len(seen.played),
            # commands since the last one of a policy
            'without_policy': sum(1 for _ in takewhile(is_fallback, reversed(seen.executed))),
        }
        print(json.dumps(found), flush=True)
    runtime.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
