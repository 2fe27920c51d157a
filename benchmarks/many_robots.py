# SPDX-License-Identifier: Apache-2.0
"""
Many robots ask one server twice a second: this package's, over ROS 2, over Zenoh and on the local
path, and its peers', in turn.

All servers are there all the time, each a process of its own; whose robots ask changes every few
seconds. The robots of one kind are one process, and send pictures that were packed beforehand:
this package's as threads of the benchmark, over Zenoh and on the local path with a connection
each; openpi's as tasks of one asyncio loop with a connection each. LeRobot's are its own robot
clients, each with threads of its own, and pack each request when they send it.
Every robot has one request in flight; what takes longer than 5 s is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import time

from benchmarks.harness.client import SERVER
from benchmarks.harness.load_generator import LoadGenerator
from benchmarks.harness.machine import load
from benchmarks.harness.nodes import running, spinning_all
from benchmarks.harness.processes import cpu_s, free_endpoints, memory_mib
from benchmarks.peers import comparison, fleet_results
from benchmarks.peers.fleet_results import FleetReplies, MeasuredBlock
from benchmarks.peers.peer import Peer, start_peers, versions
from benchmarks.peers.peer_process import ImageSet, policy_frames, READY_S
from benchmarks.peers.this_package import listen, policy_parameters
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime

ABOUT = 'many robots ask one server: this package against its peers'
COUNTS, RATE_HZ, SIZE = (1, 8, 32, 100), 2.0, ImageSet(2, 224, 224)
BLOCKS, SECONDS_A_ROUND, LEAST_S, WARM_UP_S = 4, 0.025, 1.0, 1.0
PEERS = {comparison.LEROBOT: 'lerobot', comparison.OPENPI: 'openpi'}
# its server holds one; what becomes of a few says what becomes of more
LEROBOT_MOST = 8
SERVER_OVER_ZENOH, LOCAL_SERVER = f'{SERVER}_zenoh', f'{SERVER}_local'
PARAMETERS = {
    'rate_hz': RATE_HZ,
    'pictures': f'{SIZE} raw',
    'policy': 'null',
    'blocks': BLOCKS,
    'seconds_a_block': f'{SECONDS_A_ROUND:g} x rounds',
    'warm_up_s': WARM_UP_S,
    'order': 'this package, the same over Zenoh, on the local path, LeRobot, openpi, and again',
}


@dataclass(frozen=True, slots=True)
class RobotFleet:
    """The robots of one kind and their server: how they become so many, and how they ask."""

    open: Callable[[int], None]
    pace: Callable[[float], FleetReplies]
    server_pid: int
    robots_pid: int
    most: int = max(COUNTS)

    def block(self, seconds: float) -> MeasuredBlock:
        """Let the robots ask, and return what became of it. Raises UserError."""
        pids = self.server_pid, self.robots_pid
        begin_s, before_s = time.monotonic(), [cpu_s(pid) for pid in pids]
        asked = self.pace(seconds)
        used_s = [cpu_s(pid) - before for pid, before in zip(pids, before_s, strict=True)]
        # who loses answers waits for them; who loses none is through a little before the time
        passed_s = max(seconds, time.monotonic() - begin_s)
        return MeasuredBlock(asked, passed_s, *used_s, memory_mib(self.server_pid))


def measure(rounds: int, folder: Path) -> list[Case]:
    """
    Return a case for each kind and number of robots, and one for each that is left out. Main
    thread. Raises UserError.
    """
    seconds = max(LEAST_S, rounds * SECONDS_A_ROUND)
    with contextlib.ExitStack() as stack:
        at = free_endpoints(2)
        swarm, over_zenoh, local = stack.enter_context(
            spinning_all(lambda runtime: load_generators(runtime, at))
        )
        kinds = {
            fleet_results.OURS: own_fleet(stack, swarm, SERVER, folder),
            fleet_results.ZENOH: own_fleet(
                stack, over_zenoh, SERVER_OVER_ZENOH, folder, **listen(at[0])
            ),
            fleet_results.LOCAL: own_fleet(stack, local, LOCAL_SERVER, folder, **listen(at[1])),
        }
        peers, left_out = start_peers(stack, PEERS, 'robots', folder)
        kinds |= {name: peer_fleet(name, peer) for name, peer in peers.items()}
        cases = [case for count in COUNTS for case in measure_count(kinds, count, seconds)]
        measured = Case('versions', dict(versions(peers)))
        return [*cases, measured, *left_out]


def load_generators(runtime: NodeRuntime, endpoints: list[str]) -> list[LoadGenerator]:
    """Return this package's robots: over ROS 2, over Zenoh and on the local path."""
    zenoh, local = ((endpoint,) for endpoint in endpoints)
    return [
        # each robot has a topic of its own
        LoadGenerator(runtime, topics=max(COUNTS)),
        LoadGenerator(runtime, (SERVER_OVER_ZENOH,), endpoints=zenoh),
        LoadGenerator(runtime, (LOCAL_SERVER,), endpoints=local, uses_local=True),
    ]


def measure_count(kinds: dict[str, RobotFleet], count: int, seconds: float) -> list[Case]:
    """Let so many robots of each kind ask, in turn. Raises UserError, Refused and Unreachable."""
    asking = {who: kind for who, kind in kinds.items() if count <= kind.most}
    for kind in asking.values():
        kind.open(count)
        kind.pace(WARM_UP_S)
    blocks: dict[str, list[MeasuredBlock]] = {who: [] for who in asking}
    for _ in range(BLOCKS):
        for who, kind in asking.items():
            blocks[who].append(kind.block(seconds))
    cases = fleet_results.cases(count, blocks)
    for case in cases:
        case.parameters['load_after'] = load()
    return cases + [not_measured_case(count, who) for who in kinds if who not in asking]


def not_measured_case(count: int, who: str) -> Case:
    """Return in words why it was not measured."""
    reason = f'its server holds one robot; see what becomes of {LEROBOT_MOST}'
    return Case(f'{fleet_results.case_name(count, who)} not measured', {'reason': reason})


def own_fleet(
    stack: contextlib.ExitStack, swarm: LoadGenerator, name: str, folder: Path, **more: object
) -> RobotFleet:
    """Start a server of this package for a swarm, with `more` parameters. Raises UserError."""
    policy = policy_parameters(SIZE) | {'max_sessions': max(COUNTS)} | more
    server = stack.enter_context(running(swarm, 'policy_server', name, policy, folder))
    # a process with an open Zenoh session does not end
    stack.callback(swarm.close)
    return load_generator_fleet(swarm, server.pid)


def load_generator_fleet(swarm: LoadGenerator, server_pid: int) -> RobotFleet:
    """Return this package's robots, which are part of this process."""

    def open_all(count: int) -> None:
        swarm.close()
        swarm.open(count, policy_frames(SIZE), Codec.RAW)

    def pace(seconds: float) -> FleetReplies:
        paced = swarm.pace(seconds, RATE_HZ)
        counts = Counter(sent=paced.sent, passed_over=paced.passed_over, lost=paced.lost)
        counts.update(swarm.failures)
        return FleetReplies([robot.latencies_ms for robot in swarm.robots.values()], counts)

    return RobotFleet(open_all, pace, server_pid, os.getpid())


def peer_fleet(name: str, peer: Peer) -> RobotFleet:
    """Return a peer's robots, which are a process."""

    def open_all(count: int) -> None:
        order_robots(name, peer, 'open', count, str(SIZE))

    def pace(seconds: float) -> FleetReplies:
        return fleet_results.parse_replies(order_robots(name, peer, 'pace', seconds, RATE_HZ))

    most = LEROBOT_MOST if name == comparison.LEROBOT else max(COUNTS)
    return RobotFleet(open_all, pace, peer.server.pid, peer.client.pid, most)


def order_robots(name: str, peer: Peer, *order: object) -> object:
    """Return what the robots say. Raises UserError when they do not."""
    said = peer.order(*order, within_s=READY_S)
    if said is None:
        raise UserError(f'the robots of {name} do not answer; see {name.lower()}_robots.log')
    return said
