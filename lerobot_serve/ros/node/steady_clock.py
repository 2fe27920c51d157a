# SPDX-License-Identifier: Apache-2.0
"""
Run timers and action servers of nodes on the monotonic clock, and handle `use_sim_time`.

rclpy runs both on the node's ROS clock, where they stop when the system clock steps back, and with
`use_sim_time` while no /clock arrives. In this package the ROS clock only stamps messages: with
`use_sim_time` only stamps follow the simulator. A node that does not support it rejects it with
the reason, at start and live.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import auto, Enum
from typing import Any, cast

from rcl_interfaces.msg import SetParametersResult
from rclpy.action import ActionClient, ActionServer
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidParameterTypeException
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


# entities that a signal interrupted while they were created; one signal interrupts one of them
HALF_CREATED_LIMIT = 8


def steady_clock() -> Clock:
    """Return a clock that neither the system clock nor a simulator affects."""
    return Clock(clock_type=ClockType.STEADY_TIME)


class SteadyClockNode(Node):
    """
    A node whose timers run on the steady clock. Built in the main thread.

    `sim_time_refusal` is the reason why a node rejects `use_sim_time`; empty if it accepts it.
    """

    sim_time_refusal = ''

    def __init__(self, name: str, **options: Any) -> None:
        """`options` are those of rclpy's Node. Raises UserError for a wrong `use_sim_time`."""
        try:
            super().__init__(name, **options)
        except InvalidParameterTypeException as error:
            # the only parameter that rclpy itself declares for every node
            raise UserError(f'{SIM_TIME} must be true or false: {error}') from error
        self.__simulated_time = SimTimeMonitor(self, steady_clock(), self.sim_time_refusal)

    def create_timer(
        self,
        timer_period_sec: float,
        callback: Callable[[], Any],
        callback_group: CallbackGroup | None = None,
        clock: Clock | None = None,
        autostart: bool = True,
    ) -> Timer:
        """Return a timer, on the steady clock unless another is given."""
        return super().create_timer(
            timer_period_sec, callback, callback_group, clock or steady_clock(), autostart
        )

    def destroy_node(self) -> None:
        """
        Destroy the node and its actions; rclpy keeps the actions and thereby the participant.
        """
        try:
            for waitable in list(self.waitables):
                if isinstance(waitable, (ActionClient, ActionServer)):
                    waitable.destroy()
        finally:
            self._destroy_rest()

    def _destroy_rest(self) -> None:
        """
        Destroy what rclpy holds. What a signal interrupted in the middle of its creation is not
        registered everywhere: rclpy drops it with an error, and continues when it is called again.
        """
        for _ in range(HALF_CREATED_LIMIT):
            try:
                super().destroy_node()
            except ValueError:
                continue
            return


class _SteadyClockOf:
    """Proxy of a node with a steady clock, on which an action server is built."""

    def __init__(self, node: Node) -> None:
        self._node, self._clock = node, steady_clock()

    def get_clock(self) -> Clock:
        return self._clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class SteadyClockActionServer(ActionServer):
    """An action server with a steady result timeout; the ROS clock stamps its goals."""

    def __init__(self, node: Node, *arguments: Any, **options: Any) -> None:
        """`arguments` and `options` are those of rclpy's ActionServer."""
        # rcl reads this clock for the lifetime of the server
        self._steady = _SteadyClockOf(node)
        super().__init__(cast(Node, self._steady), *arguments, **options)
        self._node = node
