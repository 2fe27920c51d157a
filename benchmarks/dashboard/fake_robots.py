# SPDX-License-Identifier: Apache-2.0
"""
Robots that publish their state and do nothing else: `python -m benchmarks.dashboard.fake_robots
FIRST COUNT RATE_HZ`. One thread paces all of them.

The reason of the first one holds when it was changed, by the monotonic clock of this machine; it
changes each second.
"""

from __future__ import annotations

import random
import sys
import threading
import time

from rclpy.serialization import serialize_message

from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve_interfaces.msg import DropCount, EdgeState

MARK, MARK_S = 'changed at ', 1.0
DROPS = ('late_reply', 'stale_episode', 'superseded')


def state(number: int) -> EdgeState:
    """Return the state of a robot that runs an episode."""
    return EdgeState(
        client_id=f'robot_{number}',
        server='/policy_router',
        episode_id=f'robot_{number}-2bf70a10-0001',
        task='put the red cube into the bowl',
        slot='ab'[number % 2],
        policy='act@0deb546c7cd4f591',
        state=EdgeState.STREAMING,
        rung=EdgeState.RUNG_POLICY,
        dropped=[DropCount(reason=reason, count=number) for reason in DROPS],
    )


class FakeRobots(SteadyClockNode):
    """Publishes the states of COUNT robots."""

    def __init__(self, runtime: NodeRuntime, first: int, count: int, rate_hz: float) -> None:
        super().__init__(f'fake_robots_{first}', context=runtime.context, enable_rosout=False)
        self._period_s = 1 / rate_hz
        self._robots = [
            (
                state(first + index),
                self.create_publisher(
                    EdgeState, f'/robot_{first + index}/edge_controller/state', qos.STATE
                ),
            )
            for index in range(count)
        ]
        self._first, self._marked_s = first, 0.0
        runtime.thread('publish', lambda: self._publish(runtime.stop))

    def _publish(self, stop: threading.Event) -> None:
        """Publish each robot once a period, at a point of the period of its own."""
        chance = random.Random(self._first)
        turn = 0
        begin_s = time.monotonic()
        step_s = self._period_s / len(self._robots)
        while not stop.is_set():
            robot, publisher = self._robots[turn % len(self._robots)]
            robot.control_steps += 15
            robot.queue_remaining_s = chance.uniform(0.3, 1.5)
            robot.action_age_s = chance.uniform(0.1, 1.0)
            robot.round_trip_ms = chance.uniform(20, 90)
            robot.network_ms = chance.uniform(1, 9)
            if turn % len(self._robots) == 0 and time.monotonic() - self._marked_s > MARK_S:
                self._marked_s = time.monotonic()
                robot.reason = f'{MARK}{time.monotonic_ns()}'
            publisher.publish(serialize_message(robot))
            turn += 1
            stop.wait(max(0.0, begin_s + turn * step_s - time.monotonic()))


def main() -> int:
    """Publish until a signal."""
    first, count, rate_hz = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    return run(lambda runtime: FakeRobots(runtime, first, count, rate_hz), [])


if __name__ == '__main__':
    sys.exit(main())
