# SPDX-License-Identifier: Apache-2.0
"""
What the death of a policy server means to robots: it is killed (SIGKILL) or hangs (SIGSTOP), again
and again, over ROS 2 and over Zenoh.

Real processes, as in the demo: simulated arms with their edge controllers, and servers with the
demo's policy, whose chunks last a second. Three ways to recover: the same server is started again
at once; a robot knows a second server; a router has a second replica in the slot. The moment of a
fault is random, so that it meets robots with much and with little left to play.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
import importlib.util
import os
from pathlib import Path
import signal
import tempfile

import numpy as np

from benchmarks.harness.fleet_stage import FleetStage, ProcessSpec, server, SLOT
from benchmarks.harness.nodes import spinning_all, wait_until_active
from benchmarks.harness.processes import node_processes
from benchmarks.results.outage import describe, find_outage, KillSamples, Outage, RecordedCommand
from benchmarks.results.report import Case
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.fleet_names import (
    CHAMPIONS,
    robot_names,
    ROUTER,
    ROUTER_PROCESS,
    server_node_name,
    STATE,
)
from lerobot_serve.demo.node import DemoMonitor
from lerobot_serve.demo.results.scoreboard import Scoreboard
from lerobot_serve.demo.tour.link import DemoLink, ROS, ZENOH, zenoh_link
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

ABOUT = 'from the death of a policy server to the next chunk that a robot plays'
ROUNDS_A_KILL, LEAST_KILLS = 40, 2
# actions that robots play before a kill: one second to two, so that it can come at any moment
ACTIONS_BEFORE = 30, 60
# played before the first kill: by then a router knows how long answers take
WARM_UP_ACTIONS = 300
LIMIT_S = 60.0
# after it an arm gives up and begins again; sim_robot's default
ATTEMPT_S = 8.0
VERSION, PROFILE = 'v1', 'wired'
PARAMETERS = {
    'rounds_a_kill': ROUNDS_A_KILL,
    'policy': f'builtin reach, {VERSION} of the demo, cpu_threads 1',
    'cameras': '2 x 224x224 raw',
    'profile_of_the_edge': PROFILE,
    'longest_attempt_s': ATTEMPT_S,
    'warm_up_actions': WARM_UP_ACTIONS,
}


class Fault(Enum):
    """What a server meets: it ends, or hangs with all connections open."""

    KILL = 'SIGKILL'
    STOP = 'SIGSTOP'


@dataclass(frozen=True, slots=True)
class FailoverSetup:
    """How robots recover; `link` is that of all robots and of the router."""

    name: str
    servers: tuple[str, ...]
    robots: int = 1
    is_routed: bool = False
    # no other server: it is started again at once
    is_alone: bool = False
    link: str = ROS
    fault: Fault = Fault.KILL


ALONE, OTHER = CHAMPIONS
RESTART = FailoverSetup('the server is started again at once', (ALONE,), is_alone=True)
SECOND = FailoverSetup('the robot knows a second server', (ALONE, OTHER))
ROUTED = FailoverSetup('the router has a second replica', (ALONE, OTHER), robots=3, is_routed=True)
SETUPS = (
    RESTART,
    SECOND,
    ROUTED,
    *(
        replace(setup, name=f'{setup.name}, {link}, {fault.value}', link=link, fault=fault)
        for link, fault in ((ROS, Fault.STOP), (ZENOH, Fault.KILL), (ZENOH, Fault.STOP))
        for setup in (SECOND, ROUTED)
    ),
)


class CommandRecorder(SteadyClockNode):
    """Notes the commands of all robots: the executor deposits, the main thread reads."""

    def __init__(self, runtime: NodeRuntime, board: Scoreboard) -> None:
        super().__init__('bench', context=runtime.context)
        self._changed = board.changed
        self.commands: dict[str, list[RecordedCommand]] = {name: [] for name in board.robots}
        self.played = dict.fromkeys(board.robots, 0)
        for name in board.robots:
            topic = f'/{name}/edge_controller/executed_action'
            self.create_subscription(
                ExecutedAction, topic, partial(self._on_executed, name), qos.EXECUTED_ACTION
            )

    def _on_executed(self, name: str, message: ExecutedAction) -> None:
        if not message.commanded:
            return
        at_s = message.stamp.sec + message.stamp.nanosec / 1e9
        is_policys = message.rung == EdgeState.RUNG_POLICY
        seen_s = at_s - message.age_s if is_policys else None
        self.commands[name].append(RecordedCommand(at_s, seen_s, message.episode_id))
        self.played[name] += is_policys
        self._changed.set()

    def outages(self, killed_s: float) -> list[Outage]:
        """Return what a kill meant to those robots for which it is over."""
        found = (find_outage(tuple(each), killed_s) for each in self.commands.values())
        return [each for each in found if each]


class FailoverScenario:
    """Processes of one way to recover. The main thread's; all of it may raise UserError."""

    def __init__(
        self, way: FailoverSetup, stage: FleetStage, witness: CommandRecorder, state: Path
    ) -> None:
        """`state` is a folder for what a router remembers."""
        self.way, self.stage, self.witness, self._state = way, stage, witness, state
        self._robots = stage.board.robots
        self._random = np.random.default_rng(1)
        self._link = link_of(way)
        # from each fault until the state of an edge, or of the router, shows it
        self.noticed_ms: list[float] = []

    def start(self) -> None:
        """Start everything and wait until all robots play."""
        for name in self.way.servers:
            self.start_server(name)
        if self.way.is_routed:
            self.stage.start(router(self.way, self._state, self._link))
        for name in self.way.servers:
            self._wait_for_server(name)
        for number, name in enumerate(self._robots):
            for part in robot(self.way, name, number, self._link):
                self.stage.start(part)
        self._wait_for_play(WARM_UP_ACTIONS)

    def start_server(self, name: str) -> None:
        self.stage.start(server(name, VERSION, self._link))

    def kill(self) -> KillSamples:
        """
        Let the server that is used fail and come back; return the outage of each robot, and how
        often each stalled.
        """
        self._wait_for_play(int(self._random.integers(*ACTIONS_BEFORE)))
        before, victim = self._stalls(), self._used_server()
        failed_s = self._fail(victim)
        if self.way.is_alone:
            self.start_server(victim)
        else:
            self._wait_until_noticed(victim, failed_s)
        outages = self._wait_for_all(failed_s)
        self._wait_for_change()
        stalls = [now - then for now, then in zip(self._stalls(), before, strict=True)]
        if self.way.fault is Fault.STOP:
            self.stage.kill(victim)
        if not self.way.is_alone:
            self.start_server(victim)
        self._wait_for_server(victim)
        return outages, stalls

    def _fail(self, name: str) -> float:
        """Kill or stop a server; return when, in seconds since 1970."""
        if self.way.fault is Fault.KILL:
            return self.stage.kill(name)
        self.stage.processes.processes[name].send_signal(signal.SIGSTOP)
        return steady_time.now_s()

    def _wait_until_noticed(self, victim: str, failed_s: float) -> None:
        self.stage.wait(lambda: self._has_left(victim), LIMIT_S, f'the fault of {victim} shows')
        self.noticed_ms.append(1000 * (steady_time.now_s() - failed_s))

    def _has_left(self, victim: str) -> bool:
        """Return whether the robot, or the router, no longer counts on a server."""
        if self.way.is_routed:
            return self._replica_state(victim) != 'READY'
        node = server_node_name(victim)
        return all(robot.edge.server != node for robot in self._robots.values())

    def _replica_state(self, name: str) -> str:
        """Return what the router says of a server."""
        node = server_node_name(name)
        replica = self._link.server_name(node)
        return self.stage.replica_state(SLOT, replica)

    def _used_server(self) -> str:
        """Return the server that answers."""
        if self.way.is_routed:
            busiest = max(self.stage.replicas(SLOT), key=lambda replica: replica.chunks)
            return busiest.server.split('/')[1]
        return next(iter(self._robots.values())).edge.server.split('/')[1]

    def _stalls(self) -> list[int]:
        return [each.edge.stalls for each in self._robots.values()]

    def _wait_for_play(self, count: int) -> None:
        until = {name: done + count for name, done in self.witness.played.items()}
        played = self.witness.played
        self.stage.wait(
            lambda: all(played[name] >= until[name] for name in until), LIMIT_S, 'the robots play'
        )

    def _wait_for_all(self, failed_s: float) -> list[Outage]:
        self.stage.wait(
            lambda: len(self.witness.outages(failed_s)) == len(self._robots),
            LIMIT_S,
            'all robots execute new chunks',
        )
        return self.witness.outages(failed_s)

    def _wait_for_change(self) -> None:
        """Wait until every edge has published its state again."""
        ticks = {name: each.edge.control_steps for name, each in self._robots.items()}
        self.stage.wait(
            lambda: all(
                each.edge.control_steps > ticks[name] for name, each in self._robots.items()
            ),
            LIMIT_S,
            'all edges have published a state',
        )

    def _wait_for_server(self, name: str) -> None:
        """Wait until a server can answer, and until a router knows that."""
        process = self.stage.processes.processes[name]
        wait_until_active(self.witness, server_node_name(name), process)
        if self.way.is_routed:
            self.stage.wait(
                lambda: self._replica_state(name) == 'READY', LIMIT_S, f'{name} is ready'
            )


def link_of(way: FailoverSetup) -> DemoLink:
    """Return the link of a setup, with a free port for each process over Zenoh."""
    listening = (*way.servers, ROUTER_PROCESS)
    return zenoh_link(listening) if way.link == ZENOH else DemoLink()


def connected(link: DemoLink, names: Iterable[str]) -> dict[str, str | list[str]]:
    """Return the parameters of an edge or a router that connects to processes."""
    return {'link': ZENOH, **link.connecting(names)} if link.endpoints else {}


def router(way: FailoverSetup, state: Path, link: DemoLink) -> ProcessSpec:
    parameters = {
        'slot_prod': [server_node_name(name) for name in way.servers],
        'state_folder': state,
        **link.listening(ROUTER_PROCESS),
        **connected(link, way.servers),
    }
    return ProcessSpec(ROUTER_PROCESS, 'policy_router', parameters=parameters)


def robot(way: FailoverSetup, name: str, seed: int, link: DemoLink) -> list[ProcessSpec]:
    """Return the edge controller of a simulated arm with the servers of the setup, and the arm."""
    edge = {
        'servers': [ROUTER] if way.is_routed else [server_node_name(each) for each in way.servers],
        'task': 'reach the red target',
        'codec': 'raw',
        'network_profile': PROFILE,
        # with the alarm a robot would stop and wait for an operator
        'clamp_alarm_window_s': 0.0,
        'state_folder': Path(STATE) / name,
        **connected(link, [ROUTER_PROCESS] if way.is_routed else way.servers),
    }
    arm = {'seed': seed, 'attempt_timeout_s': ATTEMPT_S, 'outcome_topic': f'{ROUTER}/outcome'}
    return [
        ProcessSpec(f'{name}_edge', 'edge_controller', f'/{name}', edge),
        ProcessSpec(f'{name}_arm', 'sim_robot', f'/{name}', arm),
    ]


def witnessed_stage(
    stack: contextlib.ExitStack, robots: int, folder: Path
) -> tuple[FleetStage, CommandRecorder]:
    """Return a stage for so many robots, and what records their commands."""
    board = Scoreboard(robot_names(robots))
    monitor, witness = stack.enter_context(
        spinning_all(
            lambda runtime: [DemoMonitor(runtime, board), CommandRecorder(runtime, board)]
        )
    )
    client = stack.enter_context(FleetClient(LIMIT_S, node=monitor))
    processes = stack.enter_context(node_processes(folder, dict(os.environ)))
    return FleetStage(processes, client, board, folder), witness


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case for each way to recover. Main thread. Raises UserError."""
    if importlib.util.find_spec('torch') is None:
        return [Case('not measured', {'why': 'torch is not installed, which the policy needs'})]
    kills = max(LEAST_KILLS, rounds // ROUNDS_A_KILL)
    return [measure_setup(way, kills, folder) for way in SETUPS]


def measure_setup(way: FailoverSetup, kills: int, folder: Path) -> Case:
    """Start everything, kill so often, end all. Raises UserError."""
    with contextlib.ExitStack() as stack:
        # what a router of an earlier run remembers must not matter
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        stage, witness = witnessed_stage(stack, way.robots, folder)
        scene = FailoverScenario(way, stage, witness, state)
        scene.start()
        samples = [scene.kill() for _ in range(kills)]
        return describe(
            way.name, samples, may_stall=not way.is_routed, noticed_ms=scene.noticed_ms
        )
