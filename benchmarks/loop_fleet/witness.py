# SPDX-License-Identifier: Apache-2.0
"""
Hears a loop: the states of learner, canary and servers, versions, and the commands of a robot.

The executor thread deposits; the main thread reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass, field
from functools import partial
import time

from std_srvs.srv import Trigger

from benchmarks.harness.nodes import spinning_node
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import (
    CanaryState,
    ExecutedAction,
    LearnerState,
    PolicyVersion,
    ServerStatus,
)

SERVERS = ('a', 'b')
EDGE, SERVICES = '/robot_1/edge_controller', ('take_over', 'hand_back')
ROUTER = '/policy_router'


@dataclass(slots=True)
class Witness:
    """
    The newest states, and what each server has served, in order; the time of each control step of
    the robot, by its own clock [s]; when each version was announced and first drove it, by its
    digest [s, monotonic]. `call` calls one of SERVICES of the robot, and waits for no answer.
    """

    learner: int = 0
    canary: int = 0
    steps_s: list[float] = field(default_factory=list)
    announced: dict[str, float] = field(default_factory=dict)
    drove: dict[str, float] = field(default_factory=dict)
    served: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in SERVERS})
    call: Callable[[str], object] = lambda name: None

    def on_learner(self, message: LearnerState) -> None:
        self.learner = message.state

    def on_version(self, message: PolicyVersion) -> None:
        self.announced.setdefault(digest_of(message.id), time.monotonic())

    def on_executed(self, message: ExecutedAction) -> None:
        self.steps_s.append(message.stamp.sec + 1e-9 * message.stamp.nanosec)
        if message.policy:
            self.drove.setdefault(digest_of(message.policy), time.monotonic())

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
        node.create_subscription(PolicyVersion, '/policy_versions', found.on_version, qos.VERSIONS)
        node.create_subscription(
            ExecutedAction, f'{EDGE}/executed_action', found.on_executed, qos.EXECUTED_ACTION
        )
        for name in SERVERS:
            topic = f'/{name}/policy_server/status'
            node.create_subscription(
                ServerStatus, topic, partial(found.on_status, name), qos.STATE
            )
        clients = {name: node.create_client(Trigger, f'{EDGE}/{name}') for name in SERVICES}
        found.call = lambda name: clients[name].call_async(Trigger.Request())
        yield found
