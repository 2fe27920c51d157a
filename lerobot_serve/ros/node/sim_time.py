# SPDX-License-Identifier: Apache-2.0
"""
Handle `use_sim_time`: stamps follow /clock, everything else runs in real time.

A node that does not support it rejects it with the reason, at start and live.
"""

from __future__ import annotations

from enum import auto, Enum

from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.timer import Timer

from lerobot_serve.errors import UserError

SIM_TIME = 'use_sim_time'
COMPARE_S = 2.0
# relative deviation from real time that counts as real time
TOLERANCE = 0.1


class Pace(Enum):
    """Pace of simulated time against the monotonic clock."""

    REAL_TIME = auto()
    STOPPED = auto()
    OTHER = auto()


def pace(simulated_ns: int, steady_ns: int) -> Pace:
    """Return the pace of simulated time; `steady_ns` is positive."""
    if simulated_ns == 0:
        return Pace.STOPPED
    is_real = abs(simulated_ns / steady_ns - 1) <= TOLERANCE
    return Pace.REAL_TIME if is_real else Pace.OTHER


class SimTimeMonitor:
    """Checks `use_sim_time` and warns about its pace. Main thread builds it; executor calls it."""

    def __init__(self, node: Node, steady: Clock, refusal: str) -> None:
        """
        Raise UserError for a wrong value of `use_sim_time`.

        `refusal` is the reason why the node rejects it; empty if the node supports it.
        """
        self._node, self._steady, self._refusal = node, steady, refusal
        self._timer: Timer | None = None
        self._before: tuple[int, int] | None = None
        self._pace = Pace.REAL_TIME
        given = node._parameter_overrides.get(SIM_TIME)
        refused = self._refused([given]) if given else ''
        if refused:
            node.destroy_node()
            raise UserError(refused)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._on_parameter)
        self._on_parameter([node.get_parameter(SIM_TIME)])

    def _check(self, wanted: list[Parameter]) -> SetParametersResult:
        refused = self._refused(wanted)
        return SetParametersResult(successful=not refused, reason=refused)

    def _refused(self, wanted: list[Parameter]) -> str:
        for value in (each.value for each in wanted if each.name == SIM_TIME):
            if value and self._refusal:
                return f'{SIM_TIME} must be false for {self._node.get_name()}: {self._refusal}'
        return ''

    def _on_parameter(self, accepted: list[Parameter]) -> None:
        for value in (each.value for each in accepted if each.name == SIM_TIME):
            if self._timer:
                self._node.destroy_timer(self._timer)
                self._timer, self._before = None, None
            if value:
                self._timer = self._node.create_timer(COMPARE_S, self._compare)

    def _compare(self) -> None:
        """Warn once when the pace of simulated time changes."""
        clocks = self._node.get_clock(), self._steady
        simulated_ns, steady_ns = (clock.now().nanoseconds for clock in clocks)
        before, self._before = self._before, (simulated_ns, steady_ns)
        if before is None:
            return
        passed_ns, real_ns = simulated_ns - before[0], steady_ns - before[1]
        known, self._pace = self._pace, pace(passed_ns, real_ns)
        if known is self._pace:
            return
        found = (
            f'/clock runs at {passed_ns / real_ns:.2f}x real time'
            if self._node.count_publishers('/clock')
            else 'nothing publishes /clock, so stamps stand still'
        )
        self._node.get_logger().warning(
            f'{SIM_TIME}: {found}. Only stamps follow it; control steps, ages, limits and '
            'episodes run in real time'
        )
