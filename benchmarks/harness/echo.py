# SPDX-License-Identifier: Apache-2.0
"""
The yardstick: the least that rclpy can do between the same two topics.

    python -m benchmarks.harness.echo REPLY_BYTES

Answers each request with bytes made beforehand, under the QoS of the real data path. One thread,
one callback, nothing read.
"""

from __future__ import annotations

import contextlib
import sys

import rclpy
from rclpy.executors import ExternalShutdownException

from lerobot_serve.contract.cdr import ENCAPSULATION
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve_interfaces.msg import ActionChunk, Observation

REQUESTS, REPLIES = '/echo/observation', '/echo/action_chunk'


def main() -> int:
    """Echo until a signal."""
    reply = ENCAPSULATION + bytes(int(sys.argv[1]) - len(ENCAPSULATION))
    rclpy.init()
    node = SteadyClockNode('echo')
    publisher = node.create_publisher(ActionChunk, REPLIES, qos.ACTION_CHUNK)
    node.create_subscription(
        Observation,
        REQUESTS,
        lambda _: publisher.publish(reply),
        qos.OBSERVATION_READER,
        raw=True,
    )
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(node)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
