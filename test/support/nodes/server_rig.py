# SPDX-License-Identifier: Apache-2.0
"""A policy server in a process of its own, and everything that operators and clients ask of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import subprocess
import time
from typing import Any
import zlib

from lifecycle_msgs.srv import ChangeState, GetState
from msgspec.structs import replace
import pytest
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.parameter import Parameter

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.contract.session_messages import message_of
from lerobot_serve.tools.processes.node_processes import NodeProcesses
from lerobot_serve_interfaces.action import PredictChunk
from lerobot_serve_interfaces.msg import Observation, ServerStatus
from lerobot_serve_interfaces.srv import GetStatus, OpenSession
from support.contract.session_request import session_request
from support.nodes.small_client import JOINTS, SmallClient
from support.nodes.steering import Steering
from support.processes.in_executor import in_executor

SERVER = '/policy_server'
STATES = {
    ServerStatus.UNCONFIGURED: 'unconfigured',
    ServerStatus.INACTIVE: 'inactive',
    ServerStatus.ACTIVE: 'active',
    ServerStatus.DRAINING: 'draining',
    ServerStatus.FAILED: 'failed',
}
LIMIT_S = 60.0
# torch and LeRobot are imported first: seven seconds of CPU, on cores that are shared
LOADING_LIMIT_S = 120.0
# a call to a server that was killed is lost, one to its successor is not
TRY_S = 2.0
ASKED_AT_MOST = 4


class ServerRig:
    """Used by the test's thread; the node spins in the background."""

    def __init__(
        self, node: Node, fleet: NodeProcesses, steering: Steering, name: str = SERVER
    ) -> None:
        self.node, self.fleet, self.steering, self.name = node, fleet, steering, name
        self._clients: dict[str, Any] = {}
        self._predict: ActionClient | None = None

    def start(self, until: str = 'active', **parameters: object) -> subprocess.Popen:
        """Start it and wait for the state; `steered` policies find their folder by themselves."""
        if parameters.get('policy_kind') == 'steered':
            parameters.setdefault('policy_path', self.steering.path())
        name = self.name.strip('/').split('/')
        namespace = f'/{name[0]}' if name[1:] else ''
        process = self.fleet.start(
            name[0],
            'policy_server',
            namespace=namespace,
            **{'status_period_s': 0.05, **parameters},
        )
        self.wait_for(until)
        if until in ('active', 'inactive'):
            # its status is told before the transition is over, and during one none is allowed
            self.wait(lambda: self.lifecycle() == until, f'{self.name} has become {until}')
        return process

    def client(self, name: str = 'tester', **ask: object) -> SmallClient:
        """Return a robot with an open session."""
        links = getattr(self.fleet, 'links', None)
        link = links.link(self.name) if links else None
        robot = SmallClient(self.node, self.name, name, link, **{'cameras': (), **ask})
        robot.open()
        return robot

    def stranger(self, name: str, **changes: object) -> OpenSessionRequest:
        """Return the ask of a robot that only wants to know; nobody listens on its topic."""
        ask = session_request(
            name, 1, f'/{name}/action_chunk', JOINTS, instance=zlib.crc32(name.encode())
        )
        return replace(ask, **changes)

    def clients(self, count: int) -> list[SmallClient]:
        return [self.client(f'robot_{i}') for i in range(count)]

    def ask(self, kind: type, service: str, request: Any, limit_s: float = LIMIT_S) -> Any:
        """Return the response of one of the server's services; one that is not there yet comes."""
        client = self.service(kind, service)
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return call_service(client, request, TRY_S)
            except ServiceCallFailed:
                if time.monotonic() > deadline:
                    raise

    def service(self, kind: type, service: str) -> Any:
        """Return the client of a service."""
        if service not in self._clients:
            self._clients[service] = self.node.create_client(kind, f'{self.name}/{service}')
        return self._clients[service]

    def change_state(self, transition: str | int, limit_s: float = LIMIT_S) -> bool:
        """Ask for a transition, by its label or its number; return whether it went well."""
        return self.finished(self.begin(transition), f'transition {transition}', limit_s).success

    def begin(self, transition: str | int) -> Any:
        """Ask for a transition and return the future of the response."""
        client = self.service(ChangeState, 'change_state')
        assert client.wait_for_service(LIMIT_S)
        request = ChangeState.Request()
        if isinstance(transition, str):
            request.transition.label = transition
        else:
            request.transition.id = transition
        return client.call_async(request)

    def lifecycle(self) -> str:
        """Return the state as the lifecycle has it."""
        return self.ask(GetState, 'get_state', GetState.Request()).current_state.label

    def set(self, **values: object) -> str:
        """Change parameters; return why that is refused, nothing when it is not."""
        wanted = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        request = SetParameters.Request(parameters=wanted)
        results = self.ask(SetParameters, 'set_parameters', request).results
        return '; '.join(result.reason for result in results if not result.successful)

    def describe(self) -> GetStatus.Response:
        return self.ask(GetStatus, 'get_status', GetStatus.Request())

    def status(self) -> ServerStatus:
        return self.describe().status

    def state(self) -> str:
        """Return the state as GetStatus has it."""
        return STATES[self.status().state]

    def open_session(self, ask: OpenSessionRequest) -> OpenSession.Response:
        """Return the whole reply, accepted or not."""
        return self.ask(OpenSession, 'open_session', message_of(ask, OpenSession.Request))

    def drops(self) -> dict[str, int]:
        return {drop.reason: drop.count for drop in self.status().dropped}

    def wait_for_drop(self, reason: str, count: int = 1) -> None:
        text = f'{count} drops of {reason}'
        self.wait(lambda: self.drops().get(reason, 0) >= count, text)

    def wait_for(self, state: str) -> None:
        self.wait(lambda: self.state() == state, f'{self.name} is {state}')

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests have arrived since the start."""
        self.wait(lambda: self.status().requests >= count, f'{count} requests')

    def wait_for_events(self, kind: str, count: int = 1) -> list[str]:
        """Return what the steered policy told, once there is enough of it."""

        def told() -> list[str]:
            found = self.steering.events(kind)
            return found if len(found) >= count else []

        return self.wait(told, f'{count} events {kind!r}')

    def wait(self, holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> Any:
        """Return what `holds` returns as soon as it is true; fail after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            value = holds()
            if value:
                return value
            time.sleep(0.002)
        return pytest.fail(f'{what}: not within {limit_s:g} s')

    def predict(self, observation: Observation, **given: object) -> Goal:
        """Send a goal of PredictChunk; it is accepted by the time this returns."""
        if self._predict is None:
            name = f'{self.name}/predict_chunk'
            build = partial(ActionClient, self.node, PredictChunk, name, **qos.ACTION_SERVICES)
            self._predict = in_executor(self.node, build)
            assert self._predict.wait_for_server(LIMIT_S)
        goal = PredictChunk.Goal(observation=observation)
        ask = partial(self._predict.send_goal_async, goal, **given)
        return Goal(self, self._accepted(ask))

    def _accepted(self, ask: Callable[[], Any]) -> Any:
        """
        Return the future of a goal that was answered. On a busy machine a server may know a client
        only after it has answered: rmw then drops the answer and says so in the server's log.
        """
        for _ in range(ASKED_AT_MOST):
            future = in_executor(self.node, ask)
            deadline = time.monotonic() + LIMIT_S / ASKED_AT_MOST
            while not future.done() and time.monotonic() < deadline:
                time.sleep(0.002)
            if future.done():
                break
        return future

    def finished(self, future: Any, what: str, limit_s: float = LIMIT_S) -> Any:
        """Return what an answer of rclpy holds, once it came."""
        self.wait(future.done, what, limit_s)
        return future.result()

    def end(self) -> None:
        if self._predict:
            self._predict.destroy()


class Goal:
    """One request of PredictChunk on its way."""

    def __init__(self, rig: ServerRig, accepted: Any) -> None:
        self._rig = rig
        self.handle = rig.finished(accepted, 'the goal is accepted')
        assert self.handle.accepted
        self._result = in_executor(rig.node, self.handle.get_result_async)

    def cancel(self) -> bool:
        """Return whether the server agreed."""
        cancelled = in_executor(self._rig.node, self.handle.cancel_goal_async)
        response = self._rig.finished(cancelled, 'the cancel is answered')
        return bool(response.goals_canceling)

    def done(self) -> bool:
        return self._result.done()

    def result(self) -> tuple[int, Any]:
        """Return how it ended, a status of action_msgs GoalStatus, and the chunk."""
        answer = self._rig.finished(self._result, 'the goal ends')
        return answer.status, answer.result.chunk
