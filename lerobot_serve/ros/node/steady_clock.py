"""
Nodes whose timers and action servers run on the monotonic clock.

rclpy runs both on the node's ROS clock. They stop when the system clock steps back, and with
`use_sim_time` as long as no /clock arrives. Here the ROS clock stamps messages and nothing else:
with `use_sim_time` only stamps follow the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidParameterTypeException
from rclpy.node import Node
from rclpy.timer import Timer

from lerobot_serve.entry_points import UserError
from lerobot_serve.ros.node.sim_time import SIM_TIME, SimTimeMonitor


def steady_clock() -> Clock:
    """Return a clock that neither the system clock nor a simulator changes."""
    return Clock(clock_type=ClockType.STEADY_TIME)


class SteadyClockNode(Node):
    """
    A node whose timers are steady. Built in the main thread.

    `sim_time_refusal` says why a node takes no `use_sim_time`; empty where it does.
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
        callback: Callable,
        callback_group: CallbackGroup | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> Timer:
        """Return a timer as rclpy does, on the steady clock where none is given."""
        clock = clock or steady_clock()
        return super().create_timer(timer_period_sec, callback, callback_group, clock, **options)


class _SteadyClockOf:
    """A node, but for its clock, while an action server is built on it."""

    def __init__(self, node: Node) -> None:
        self._node, self._clock = node, steady_clock()

    def get_clock(self) -> Clock:
        return self._clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class SteadyClockActionServer(ActionServer):
    """An action server that keeps results for a steady time; the ROS clock stamps its goals."""

    def __init__(self, node: Node, *arguments: Any, **options: Any) -> None:
        """`arguments` and `options` are those of rclpy's ActionServer."""
        # rcl reads this clock as long as the server lives
        self._steady = _SteadyClockOf(node)
        super().__init__(self._steady, *arguments, **options)
        self._node = node
