# SPDX-License-Identifier: Apache-2.0
"""
Tells which robots a recorder does not hear though their edge controllers run. Pure.

A robot that ended, or was killed, leaves the ROS graph: that is no silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# a state is sent each 10 s at the latest; a killed node stays in the ROS graph for five seconds
SILENT_S = 15.0
# a recorder that was itself stopped for so long knows nothing of that time
LATE_S = 3.0


@dataclass(slots=True)
class _Robot:
    heard_s: float
    is_silent: bool = False
    # of the silences that ended
    unheard_s: float = 0.0


class Silence:
    """Executor thread. `topic` is ~/state of an edge controller; times are monotonic [s]."""

    def __init__(self) -> None:
        self._robots: dict[str, _Robot] = {}
        self._polled_s: float | None = None

    def on_state(self, topic: str, now_s: float) -> str:
        """Count that a robot is heard; return what to log, empty for nothing."""
        robot = self._robots.setdefault(topic, _Robot(now_s))
        silent_s, robot.heard_s = now_s - robot.heard_s, now_s
        if not robot.is_silent:
            return ''
        robot.is_silent = False
        robot.unheard_s += silent_s
        return (
            f'{topic} is heard again after {silent_s:.0f} s: what the robot did meanwhile is in '
            'no bag'
        )

    def poll(self, now_s: float, has_publisher: Callable[[str], bool]) -> list[str]:
        """
        Return what to log of robots that fell silent; called each second. `has_publisher` tells
        whether somebody in the ROS graph publishes a topic.
        """
        late_s = 0.0 if self._polled_s is None else now_s - self._polled_s
        self._polled_s = now_s
        if late_s >= LATE_S:
            for robot in self._robots.values():
                robot.heard_s += late_s
        fell = [
            topic
            for topic, robot in self._robots.items()
            if not robot.is_silent and now_s - robot.heard_s >= SILENT_S and has_publisher(topic)
        ]
        for topic in fell:
            self._robots[topic].is_silent = True
        return [
            f'{topic} is not heard since {SILENT_S:g} s though it has a publisher: the robot is '
            'not recorded. Start the recorder again if it stays so'
            for topic in fell
        ]

    def unheard_s(self, now_s: float) -> dict[str, float]:
        """Return for how long robots that fell silent were not heard, by topic."""
        ended = {topic: robot.unheard_s for topic, robot in self._robots.items()}
        lasting = {
            topic: now_s - robot.heard_s
            for topic, robot in self._robots.items()
            if robot.is_silent
        }
        total = {topic: ended[topic] + lasting.get(topic, 0.0) for topic in ended}
        return {topic: silent_s for topic, silent_s in total.items() if silent_s}
