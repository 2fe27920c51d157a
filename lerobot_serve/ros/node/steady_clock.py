# SPDX-License-Identifier: Apache-2.0
"""
Run timers and action servers of nodes on the monotonic clock.

rclpy runs both on the node's ROS clock, where they stop when the system clock steps back, and with
`use_sim_time` while no /clock arrives. In this package the ROS clock only stamps messages: with
`use_sim_time` only stamps follow the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rclpy.action import ActionClient, ActionServer
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidParameterTypeException
from rclpy.node import Node
from rclpy.timer import Timer

from lerobot_serve.errors import UserError
from lerobot_serve.ros.node.sim_time import SIM_TIME, SimTimeMonitor

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
