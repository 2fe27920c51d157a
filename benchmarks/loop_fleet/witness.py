# SPDX-License-Identifier: Apache-2.0
"""
Hears a loop: the states of learner, canary and servers, and each reply that reaches a robot.

The executor thread deposits; the main thread reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass, field
from functools import partial

from std_srvs.srv import Trigger

from benchmarks.harness.nodes import spinning_node
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import CanaryState, LearnerState, ServerStatus

SERVERS = ('a', 'b')
EDGE, SERVICES = '/robot_1/edge_controller', ('take_over', 'hand_back')
ROUTER = '/policy_router'


@dataclass(slots=True)
class Witness:
    """
    The newest states, and what each server has served, in order; `call` calls one of SERVICES of
    the robot, and waits for no answer.
    """

    learner: int = 0
    round: int = 0
    canary: int = 0
    served: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in SERVERS})
    call: Callable[[str], object] = lambda name: None

    def on_learner(self, message: LearnerState) -> None:
        self.learner, self.round = message.state, message.round

    def on_canary(self, message: CanaryState) -> None:
        self.canary = message.state

    def on_status(self, server: str, message: ServerStatus) -> None:
        known = self.served[server]
        if message.policy and message.policy not in known[-1:]:
            known.append(message.policy)

    @property
    def policies(self) -> set[str]:
        """All policies that a server has served."""
        return {policy for served in self.served.values() for policy in served}


@contextlib.contextmanager
def witness() -> Iterator[Witness]:
    """Hear the loop of this ROS domain."""
    found = Witness()
    with spinning_node('bench_loop_witness') as node:
        node.create_subscription(LearnerState, '/learner/state', found.on_learner, qos.STATE)
        node.create_subscription(CanaryState, f'{ROUTER}/canary', found.on_canary, qos.STATE)
        for name in SERVERS:
            topic = f'/{name}/policy_server/status'
            node.create_subscription(
                ServerStatus, topic, partial(found.on_status, name), qos.STATE
            )
        clients = {name: node.create_client(Trigger, f'{EDGE}/{name}') for name in SERVICES}
        found.call = lambda name: clients[name].call_async(Trigger.Request())
        yield found
