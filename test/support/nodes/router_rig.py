# SPDX-License-Identifier: Apache-2.0
"""
A router and policy servers in processes of their own, robots before it, and an operator's view.

Servers serve the kind `steered`, so that a test says how each of them behaves: two in one slot
have the same policy when they are given the same folder.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import signal
import subprocess
import time
from typing import Any

import pytest
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.node import Node
from rclpy.parameter import Parameter

from benchmarks.harness.processes import NodeProcesses
from lerobot_serve.gateway.callers.episode_names import scoped_name
from lerobot_serve.ros import qos
from lerobot_serve.router.placement.split import bucket
from lerobot_serve_interfaces.msg import (
    CanaryState,
    EpisodeOutcome,
    RouterState,
    RoutingDecision,
    ShadowDivergence,
    ShadowSummary,
    SlotState,
)
from lerobot_serve_interfaces.srv import ControlSlot, ReportOutcome
from support.nodes.service_asking import ask as ask_service
from support.nodes.small_client import SmallClient
from support.nodes.steering import Steering
from support.processes.native_stacks import print_stacks
from support.processes.stopped_process import halt

ROUTER = '/policy_router'
LIMIT_S = 30.0
# what a test does not want to wait for
QUICK = {
    'probe_initial_interval_s': 0.2,
    'reply_timeout_s': 0.5,
    'discovery_timeout_s': 20.0,
    'session_grace_s': 1.0,
}


class Watch:
    """What the router publishes; the executor deposits, the test reads."""

    def __init__(self, node: Node) -> None:
        self.decisions: list[RoutingDecision] = []
        self.divergences: list[ShadowDivergence] = []
        self.last: dict[type, Any] = {}
        node.create_subscription(
            RoutingDecision, f'{ROUTER}/routing', self.decisions.append, qos.DECISIONS
        )
        node.create_subscription(
            ShadowDivergence, f'{ROUTER}/shadow_divergence', self.divergences.append, qos.DECISIONS
        )
        for kind, topic in (
            (RouterState, 'state'),
            (CanaryState, 'canary'),
            (ShadowSummary, 'shadow_summary'),
        ):
            node.create_subscription(kind, f'{ROUTER}/{topic}', self._keep(kind), qos.STATE)

    def _keep(self, kind: type) -> Callable[[Any], None]:
        return lambda message: self.last.__setitem__(kind, message)


class RouterRig:
    """Used by the test's thread; the node spins in the background."""

    def __init__(self, node: Node, fleet: NodeProcesses, folder: Path) -> None:
        self.node, self.fleet, self.folder = node, fleet, folder
        self.watch = Watch(node)
        self.steerings: dict[str, Steering] = {}
        self._clients: dict[str, Any] = {}
        self._outcomes = node.create_publisher(EpisodeOutcome, f'{ROUTER}/outcome', qos.OUTCOME)

    # processes

    def steering(self, name: str) -> Steering:
        """Return the folder of one policy."""
        if name not in self.steerings:
            self.steerings[name] = Steering(self.folder / f'steering_{name}')
        return self.steerings[name]

    def server(
        self, name: str, slot: str, policy: str = '', *, options: str = '', **parameters: object
    ) -> subprocess.Popen:
        """
        Start /NAME/policy_server in a slot; `policy` (default NAME) says whose folder it has.
        """
        path = f'{self.steering(policy or name).folder}?chunk=30{options}'
        return self.fleet.start(
            name,
            'policy_server',
            namespace=f'/{name}',
            policy_kind='steered',
            policy_path=path,
            slot=slot,
            status_period_s=0.1,
            **parameters,
        )

    def router(self, **parameters: object) -> subprocess.Popen:
        """Start the router; it finds its servers under /a/policy_server and so on."""
        for name in ('slot_a', 'slot_b', 'slot_prod'):
            if name in parameters:
                names = ', '.join(f"'/{server}/policy_server'" for server in parameters[name])
                parameters[name] = f'[{names}]'
        return self.fleet.start('router', 'policy_router', **{**QUICK, **parameters})

    def slots(self, **router: object) -> None:
        """Start a server in each of two slots, and a router that knows both."""
        for slot in ('a', 'b'):
            self.server(slot, slot)
        self.router(**{'slot_a': ['a'], 'slot_b': ['b'], **router})
        self.wait_for_health('healthy')

    def kill(self, name: str) -> None:
        self.fleet.processes[name].kill()
        self.fleet.processes[name].wait()

    def hang(self, name: str) -> None:
        halt(self.fleet.processes[name])

    def go_on(self, name: str) -> None:
        self.fleet.processes[name].send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.folder / f'{name}.log').read_text()

    # robots

    def robot(self, name: str = 'tester', **ask: object) -> SmallClient:
        """Return a robot with an open session."""
        links = getattr(self.fleet, 'links', None)
        uses_local = getattr(self.fleet, 'uses_local', False)
        link = links.link(ROUTER) if links else None
        client = SmallClient(
            self.node, ROUTER, name, link, uses_local=uses_local, **{'cameras': (), **ask}
        )
        client.open()
        return client

    @staticmethod
    def episode(
        slot: str, split_percent: int = 50, salt: object = '', *, owner: str | None = None
    ) -> str:
        """
        Return a name that the split puts into a slot; with `owner`, one of a gateway's caller.
        """
        names = (f'episode-{salt}-{number}' for number in range(10_000))

        def is_there(name: str) -> bool:
            at_router = name if owner is None else scoped_name(owner, name)
            return (bucket(at_router) < split_percent) == (slot == 'a')

        return next(filter(is_there, names))

    # operators

    @property
    def state(self) -> RouterState:
        return self.wait(lambda: self.watch.last.get(RouterState), 'the state of the router')

    def slot(self, name: str) -> SlotState:
        return next(slot for slot in self.state.slots if slot.slot == name)

    def drops(self) -> dict[str, int]:
        return {drop.reason: drop.count for drop in self.state.dropped}

    def wait_for_health(self, verdict: str) -> RouterState:
        self.wait(lambda: self.state.health == verdict, f'the verdict {verdict}')
        return self.state

    def wait_for_drop(self, reason: str, count: int = 1) -> None:
        self.wait(lambda: self.drops().get(reason, 0) >= count, f'{count} drops of {reason}')

    def wait_for_decision(self, episode_id: str, **fields: object) -> RoutingDecision:
        """Return the first decision on an episode that has these fields."""

        def found() -> RoutingDecision | None:
            return next(
                (
                    decision
                    for decision in tuple(self.watch.decisions)
                    if decision.episode_id == episode_id
                    and all(getattr(decision, name) == fields[name] for name in fields)
                ),
                None,
            )

        return self.wait(found, f'a decision on {episode_id} with {fields}')

    def wait(self, holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> Any:
        """Return what `holds` returns as soon as it is true; fail after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            value = holds()
            if value:
                return value
            time.sleep(0.005)
        print_stacks(self.fleet.processes)
        return pytest.fail(f'{what}: not within {limit_s:g} s')

    def ask(self, kind: type, service: str, request: Any) -> Any:
        if service not in self._clients:
            self._clients[service] = self.node.create_client(kind, f'{ROUTER}/{service}')
        return ask_service(self.node, self._clients[service], request)

    def set(self, **values: object) -> str:
        """Change parameters; return why that is refused, nothing when it is not."""
        wanted = [
            Parameter(name.replace('__', '.'), value=v).to_parameter_msg()
            for name, v in values.items()
        ]
        request = SetParameters.Request(parameters=wanted)
        results = self.ask(SetParameters, 'set_parameters', request).results
        return '; '.join(result.reason for result in results if not result.successful)

    def get(self, name: str) -> Any:
        request = GetParameters.Request(names=[name])
        (value,) = self.ask(GetParameters, 'get_parameters', request).values
        return Parameter.from_parameter_msg(ParameterMessage(name=name, value=value)).value

    def control(self, command: int, slot: str = '', reason: str = 'a test') -> Any:
        request = ControlSlot.Request(command=command, slot=slot, reason=reason)
        return self.ask(ControlSlot, 'control_slot', request)

    def report(self, episode_id: str, outcome: int) -> Any:
        """Tell how an episode ended, with a receipt."""
        told = EpisodeOutcome(episode_id=episode_id, outcome=outcome)
        return self.ask(ReportOutcome, 'report_outcome', ReportOutcome.Request(outcome=told))

    def end(self) -> None:
        for process in self.fleet.processes.values():
            if process.poll() is None:
                # one that hangs could not end
                os.kill(process.pid, signal.SIGCONT)
        for steering in self.steerings.values():
            steering.open_gates()
        router = self.fleet.processes.get('router')
        if router and router.poll() is None:
            # before its servers: it would wait for answers of those that have gone
            router.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                router.wait(LIMIT_S)
