# SPDX-License-Identifier: Apache-2.0
"""
What a robot on WiFi or across a WAN gets: one round trip at a time over a link that is slow, far
and loses packets.

Every server is in a network of its own, and so is every robot; a relay carries the IP packets
between the two, each side with its own (bench/link). UDP with its fragments, TCP and loss are the
kernel's. This package's processes run as docs/several_machines.md says: with the profile that it
ships, and each told the other's address. The peers run as they are. Each of them has a link of its
own, so that nobody meets another's packets, and they take turns.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import asdict
import os
from pathlib import Path

from benchmarks.harness.processes import module_command, node_command
from benchmarks.harness.request_session import IMAGE_THREADS
from benchmarks.harness.router_process import null_policy
from benchmarks.network_emulation.comparison import (
    ANSWER_S,
    describe,
    ENCODINGS,
    TOO_OLD_MS,
)
from benchmarks.network_emulation.link import (
    Link,
    LinkUnavailable,
    running_endpoints,
    running_link,
)
from benchmarks.network_emulation.pipe import Conditions
from benchmarks.network_emulation.relay import MTU_BYTES, ROBOT, SERVER
from benchmarks.network_emulation.rounds import BUDGET_S, Contender, MAX_LOST_IN_A_ROW, run_rounds
from benchmarks.peers.comparison import LEROBOT, OPENPI
from benchmarks.peers.peer import Peer, running_peer
from benchmarks.peers.peer_process import CHUNK_ROWS, ImageSet, JOINTS
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError

ABOUT = 'one robot asks for a chunk over a slow link: this package against its peers'
LINKS = {
    '100 Mbit/s, 20 ms': Conditions(100, 20, 0, queue_ms=100),
    '10 Mbit/s, 20 ms, 1 % lost': Conditions(10, 20, 1, queue_ms=100),
}
SIZES = (ImageSet(2, 224, 224), ImageSet(2, 480, 640))
PEERS = {LEROBOT: 'lerobot', OPENPI: 'openpi'}
SEED = 1
WARM_UP_ROUNDS = 2
FIRST_S = 70.0
BULK_S = 2.0
ZENOH_PORT = 7447
PARAMETERS = {
    'delay': 'each way',
    'queue_ms': 100,
    'mtu_bytes': MTU_BYTES,
    'multicast': 'not carried',
    'policy': 'null',
    'chunk': f'{CHUNK_ROWS}x{JOINTS}',
    'in_flight': 1,
    'lost_after_s': ANSWER_S,
    'too_old_ms': TOO_OLD_MS,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'budget_s': BUDGET_S,
    'given_up_after': f'{MAX_LOST_IN_A_ROW} lost in a row',
    'order': 'the ways of this package, the peers, and again',
}
SERVER_PARAMETERS = {
    **null_policy('front:0x0+wrist:0x0'),
    'image_threads': IMAGE_THREADS,
    'zenoh_listen': [f'tcp/0.0.0.0:{ZENOH_PORT}'],
    # a session of one way rests while the others have their turn
    'session_idle_s': 86400.0,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """
    Return a case for each link by itself, for each size over it, and for what was left out. Main
    thread. Raises UserError.
    """
    with contextlib.ExitStack() as stack:
        try:
            probed = [probe(name, link, rounds, folder) for name, link in LINKS.items()]
        except LinkUnavailable as reason:
            return [Case('no link', {'reason': str(reason)})]
        contestants, left_out = start(stack, folder)
        measured = [
            measure_case(contestants, name, size, rounds) for name in LINKS for size in SIZES
        ]
        return [*probed, *measured, *left_out]


def probe(name: str, conditions: Conditions, rounds: int, folder: Path) -> Case:
    """Return what a link gives without ROS. Raises LinkUnavailable and UserError."""
    with running_link(conditions, SEED) as link:
        server = [*link.server, *module_command('network_emulation.probe', 'server')]
        client = [*link.robot, *module_command('network_emulation.probe', 'client')]
        with running_endpoints(
            {'probe_server': server}, client, folder, dict(os.environ)
        ) as probing:
            # waits for the server
            probing.order('bulk', 1)
            pings = [probing.order('ping') for _ in range(rounds)]
            size_bytes = round(conditions.rate_mbit_s * 1e6 / 8 * BULK_S)
            mbit_s = probing.order('bulk', size_bytes)
        if mbit_s is None:
            raise UserError(f'nothing arrived over a link of {name}; see probe_server.log')
        counts = link.counts()
        return Case(
            f'the link itself: {name}',
            {
                **asdict(conditions),
                'tcp_congestion_control': link.congestion_control,
                'tcp_mbit_s': round(mbit_s, 1),
            },
            {
                'rounds': rounds,
                'lost': pings.count(None),
                **{
                    f'{way} {what}': count
                    for way, whats in counts.items()
                    for what, count in whats.items()
                },
            },
            {'small datagram there and back': [ping for ping in pings if ping is not None]},
        )


def start(stack: contextlib.ExitStack, folder: Path) -> tuple[dict[str, Contender], list[Case]]:
    """Start all and return them, and a case in words for each that is left out."""
    contestants: dict[str, Contender] = {}
    left_out = []
    conditions = next(iter(LINKS.values()))
    link = stack.enter_context(running_link(conditions, SEED))
    robot = stack.enter_context(ours(link, folder))
    contestants |= {name: Contender(link, our_trip(robot, name)) for name in ENCODINGS}
    for name, peer in PEERS.items():
        link = stack.enter_context(running_link(conditions, SEED))
        try:
            packages = install(peer, folder / 'peers')
            met = stack.enter_context(
                running_peer(
                    peer,
                    packages,
                    folder,
                    host=SERVER,
                    server_prefix=link.server,
                    client_prefix=link.robot,
                )
            )
        except PeerUnavailable as reason:
            left_out.append(Case(f'{name} left out', {'reason': str(reason)}))
        else:
            contestants[name] = Contender(link, met.trip_ms)
    return contestants, left_out


def ours(
    link: Link, folder: Path, environment: dict[str, str] | None = None
) -> contextlib.AbstractContextManager[Peer]:
    """
    Run a policy server and a robot of this package at the two ends of a link; `environment` has
    what they are told besides. Raises UserError.
    """
    server = [
        *link.server,
        *('env', f'ROS_STATIC_PEERS={ROBOT}'),
        *node_command('policy_server', SERVER_PARAMETERS),
    ]
    robot = [
        *link.robot,
        'env',
        f'ROS_STATIC_PEERS={SERVER}',
        *module_command('network_emulation.robot_process', f'tcp/{SERVER}:{ZENOH_PORT}'),
    ]
    told = {
        **os.environ,
        # this machine only was meant for those who share its network
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET',
        **(environment or {}),
    }
    return running_endpoints({'policy_server': server}, robot, folder, told)


def our_trip(robot: Peer, name: str) -> Callable[[ImageSet], float | None]:
    def trip_ms(size: ImageSet) -> float | None:
        # the first one opens the session
        return robot.order('trip', name, str(size), within_s=FIRST_S)

    return trip_ms


def measure_case(
    contestants: dict[str, Contender], name: str, size: ImageSet, rounds: int
) -> Case:
    """Make the rounds over one kind of link. Raises UserError."""
    for contestant in contestants.values():
        contestant.link.change(LINKS[name])
    taking_part = {
        who: contestant
        for who, contestant in contestants.items()
        if who not in ENCODINGS or ENCODINGS[who].suits(size)
    }
    run_rounds(taking_part, size, WARM_UP_ROUNDS)
    return describe(
        f'{name}, {size.cameras} cameras of {size.height}x{size.width}',
        run_rounds(taking_part, size, rounds),
    )
