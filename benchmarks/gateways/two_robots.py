# SPDX-License-Identifier: Apache-2.0
"""
Two of LeRobot's RobotClients at once: through a gateway, and at LeRobot's PolicyServer.

The first one asks alone; then the second one connects, and both ask at the same time, each as fast
as it is answered. A chunk says the observation that it was made of, and each robot numbers its own
differently. Clients and server are LeRobot's own, each a process of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
import time

from benchmarks.gateways.gateway_process import ROUTED, running_fleet, running_gateway
from benchmarks.gateways.one_client import LEROBOT
from benchmarks.harness.machine import load
from benchmarks.harness.processes import child
from benchmarks.peers.lerobot import role_of
from benchmarks.peers.peer import (
    environment_of,
    free_address,
    Peer,
    peer_command,
    running_client,
)
from benchmarks.peers.peer_process import (
    Address,
    ImageSet,
    NULL_POLICY,
    wait_until_listening,
)
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.results.report import Case

ABOUT = "two of LeRobot's RobotClients at once, through a gateway and with LeRobot's PolicyServer"
SIZE = ImageSet(1, 240, 256)
FIRST, SECOND = 'first robot', 'second robot'
ALONE, BOTH = 'alone', 'beside the other'
ANSWERED, ENDED = 'answered', 'client ended'
# of those that a robot sends beside the other
GOAL_SHARE = 0.99
# a request without its chunk takes 5 s
PERIOD_S = 60.0
ROUNDS_ALONE = 20
PARAMETERS = {
    **NULL_POLICY,
    'picture': f'{SIZE.height}x{SIZE.width}',
    'lerobot_inference_latency': 0,
    'in_flight': '1 of each robot',
    'period_s': PERIOD_S,
}


@dataclass
class Driven:
    """What became of the requests of one robot in one state."""

    outcomes: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the requests, how many got the chunk of their own observation."""
        return self.outcomes[ANSWERED] / max(self.outcomes.total(), 1)


# (robot, state) -> what became of it
Found = dict[tuple[str, str], Driven]
# connects robot number so and so
Connect = Callable[[int], contextlib.AbstractContextManager[Peer]]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each server. Main thread. Raises UserError."""
    try:
        packages = install('lerobot', folder / 'peers')
        return [through_gateway(packages, rounds, folder), at_theirs(packages, rounds, folder)]
    except PeerUnavailable as reason:
        return [Case('left out', {'reason': str(reason)})]


def through_gateway(packages: Path, rounds: int, folder: Path) -> Case:
    """Drive both robots through gateway and router. Raises UserError and PeerUnavailable."""
    load_before = load()
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(SIZE, folder))
        doors = stack.enter_context(running_gateway(fleet, ROUTED, ('lerobot',), folder))
        found = drive(connecting(packages, doors['lerobot'], folder, declared=SIZE), rounds)
    goal = f'each robot gets its own chunk for {100 * GOAL_SHARE:g} % of its observations'
    both = [found[robot, BOTH].share for robot in (FIRST, SECOND)]
    return describe(ROUTED, load_before, found, {goal: min(both) >= GOAL_SHARE})


def at_theirs(packages: Path, rounds: int, folder: Path) -> Case:
    """Drive both robots with LeRobot's server. Raises PeerUnavailable."""
    load_before = load()
    address = free_address()
    command = peer_command('lerobot', packages, 'server', address.host, address.port)
    log = folder / 'lerobot_server_of_two.log'
    with child(command, log, environment_of(packages)):
        wait_until_listening(address)
        # it reads the pictures, and hands none to its policy
        found = drive(connecting(packages, address, folder, declared=None), rounds)
    return describe(LEROBOT.theirs, load_before, found, {})


def connecting(
    packages: Path, address: Address, folder: Path, *, declared: ImageSet | None
) -> Connect:
    def connect(number: int) -> contextlib.AbstractContextManager[Peer]:
        role = role_of(declared, number)
        name = f'lerobot_{role}'
        return running_client('lerobot', packages, folder, address, role=role, name=name)

    return connect


def drive(connect: Connect, rounds: int) -> Found:
    """Let the first robot ask alone, and then both at the same time."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(1))
        found = {(FIRST, ALONE): ask(first, min(rounds, ROUNDS_ALONE))}
        second = stack.enter_context(connect(2))
        with ThreadPoolExecutor(2) as threads:
            both = threads.map(lambda peer: ask(peer, rounds), (first, second))
            found |= zip(((FIRST, BOTH), (SECOND, BOTH)), both, strict=True)
    return found


def ask(peer: Peer, rounds: int) -> Driven:
    """Make the trips of one robot, for PERIOD_S at most."""
    driven, end_s = Driven(), time.monotonic() + PERIOD_S
    for _ in range(rounds):
        outcome = peer.order('trip', str(SIZE))
        if isinstance(outcome, float):
            driven.latencies_ms.append(outcome)
            driven.outcomes[ANSWERED] += 1
        else:
            driven.outcomes[ENDED if outcome is None else str(outcome)] += 1
        if outcome is None or time.monotonic() >= end_s:
            break
    return driven


def describe(way: str, load_before: float, found: Found, goals: dict[str, bool]) -> Case:
    """Return the case of one server."""
    facts: dict[str, object] = {'load_before': load_before, 'load_after': load()}
    counts, series = {}, {}
    for (robot, state), driven in found.items():
        of_robot = f'{robot} {state}'
        facts[f'{of_robot}: answered [%]'] = round(100 * driven.share, 1)
        counts |= {f'{of_robot}: {what}': n for what, n in driven.outcomes.items()}
        if driven.latencies_ms:
            series[of_robot] = driven.latencies_ms
    return Case(way, facts, counts, series, {}, goals)
