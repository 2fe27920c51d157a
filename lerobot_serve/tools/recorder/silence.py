# SPDX-License-Identifier: Apache-2.0
"""
Detects robots that a recorder does not hear although their edge controllers run. Pure.

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
    # since the last poll
    is_heard: bool = True
    # since when it runs and is not heard
    quiet_since_s: float | None = None
    is_silent: bool = False
    # of the silences that ended
    unheard_s: float = 0.0

    def quiet_s(self, now_s: float) -> float:
        return 0.0 if self.quiet_since_s is None else now_s - self.quiet_since_s

    def end_quiet(self, now_s: float) -> None:
        if self.is_silent:
            self.unheard_s += self.quiet_s(now_s)
        self.quiet_since_s, self.is_silent = None, False


class Silence:
    """Executor thread. `topic` is ~/state of an edge controller; times are monotonic [s]."""

    def __init__(self) -> None:
        self._robots: dict[str, _Robot] = {}
        self._polled_s: float | None = None

    def on_state(self, topic: str, now_s: float) -> str:
        """Count that a robot is heard; return what to log, empty for nothing."""
        robot = self._robots.setdefault(topic, _Robot())
        was_silent, quiet_s = robot.is_silent, robot.quiet_s(now_s)
        robot.is_heard = True
        robot.end_quiet(now_s)
        if not was_silent:
            return ''
        return (
            f'{topic} is heard again after {quiet_s:.0f} s: what the robot did meanwhile is in '
            'no bag'
        )

    def poll(self, now_s: float, has_publisher: Callable[[str], bool]) -> list[str]:
        """
        Return what to log of robots that fell silent; called each second. `has_publisher` returns
        whether a topic has a publisher in the ROS graph.
        """
        before_s = now_s if self._polled_s is None else self._polled_s
        self._polled_s = now_s
        if now_s - before_s >= LATE_S:
            for robot in self._robots.values():
                robot.end_quiet(before_s)
        return [
            f'{topic} has not been heard for {SILENT_S:g} s although it has a publisher: the '
            'robot is not recorded. Restart the recorder if this lasts'
            for topic, robot in self._robots.items()
            if self._falls_silent(topic, robot, now_s, has_publisher)
        ]

    def _falls_silent(
        self, topic: str, robot: _Robot, now_s: float, has_publisher: Callable[[str], bool]
    ) -> bool:
        was_heard, robot.is_heard = robot.is_heard, False
        if was_heard or not has_publisher(topic):
            robot.end_quiet(now_s)
            return False
        if robot.quiet_since_s is None:
            robot.quiet_since_s = now_s
        falls = not robot.is_silent and robot.quiet_s(now_s) >= SILENT_S
        robot.is_silent = robot.is_silent or falls
        return falls

    def unheard_s(self, now_s: float) -> dict[str, float]:
        """Return for how long robots that fell silent were not heard, by topic."""
        total = {
            topic: robot.unheard_s + (robot.quiet_s(now_s) if robot.is_silent else 0.0)
            for topic, robot in self._robots.items()
        }
        return {topic: silent_s for topic, silent_s in total.items() if silent_s}
