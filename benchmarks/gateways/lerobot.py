# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's RobotClient asks for a chunk: through a gateway, and from LeRobot's PolicyServer.

Client and server are LeRobot's own; each server, gateway and client is a process of its own. The
policy answers at once everywhere. LeRobot's server is spared the pictures: it reads them and hands
none to its policy, while the gateway sends them on to the policy server. A server that has a chunk
ready shows what the client and gRPC take by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import sys

from benchmarks.gateways.gateway_process import (
    DIRECT,
    direct_session,
    Fleet,
    LOCALHOST,
    ROS,
    ROUTED,
    running_fleet,
    SIZES,
    ZENOH,
)
from benchmarks.gateways.openpi import added_goal, added_ms, alternate, trip_of, TripMs
from benchmarks.harness.processes import child
from benchmarks.peers.comparison import compare
from benchmarks.peers.lerobot import role_of
from benchmarks.peers.peer import free_port, Peer, running_client, running_peer
from benchmarks.peers.peer_process import (
    Address,
    CHUNK_ROWS,
    ImageSet,
    JOINTS,
    wait_until_listening,
)
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes.node_processes import executable_path

ABOUT = "LeRobot's RobotClient through a gateway, and with LeRobot's PolicyServer"
THEIRS, IMMEDIATE = "LeRobot's PolicyServer", 'gRPC server with a chunk ready'
WARM_UP_ROUNDS = 20
GOAL_RATIO = 0.5
PARAMETERS = {
    'state': JOINTS,
    'chunk': f'{CHUNK_ROWS}x{JOINTS}',
    'policy': 'null',
    'lerobot_inference_latency': 0,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'each way once, and again',
}
Trips = dict[str, list[float | None]]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each size. Main thread. Raises UserError."""
    try:
        packages = install('lerobot', folder / 'peers')
        with running_peer('lerobot', packages, folder) as theirs:
            return [measure_case(theirs, packages, size, rounds, folder) for size in SIZES]
    except PeerUnavailable as reason:
        return [Case('left out', {'reason': str(reason)})]


def measure_case(theirs: Peer, packages: Path, size: ImageSet, rounds: int, folder: Path) -> Case:
    """Start servers and gateways, make the rounds. Raises UserError and PeerUnavailable."""
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(size, folder))
        ways: dict[str, TripMs] = {THEIRS: trip_of(theirs, size)}
        servers = {IMMEDIATE: running_immediate_server(folder)}
        servers |= {way: running_gateway(fleet, way, folder) for way in (ZENOH, ROUTED, ROS)}
        for way, server in servers.items():
            address = stack.enter_context(server)
            name = f'lerobot_client_{way.replace(" ", "_")}'
            client = running_client(
                'lerobot', packages, folder, address, role=role_of(size), name=name
            )
            ways[way] = trip_of(stack.enter_context(client), size)
        ways[DIRECT] = stack.enter_context(direct_session(fleet, size))
        alternate(ways, WARM_UP_ROUNDS)
        trips = alternate(ways, rounds)
    if not any(each is not None for each in trips[ZENOH]):
        raise UserError(f'no trip through the gateway was answered; see the logs in {folder}')
    facts = {'picture_bytes': size.picture_bytes, **theirs.versions}
    facts |= {'load_before': round(load_before, 2), 'load_after': round(os.getloadavg()[0], 2)}
    return describe(size, facts, rounds, trips)


@contextlib.contextmanager
def running_gateway(fleet: Fleet, way: str, folder: Path) -> Iterator[Address]:
    """Start a gateway for robot clients, and give the address of the door. Raises OSError."""
    address = Address(LOCALHOST, free_port())
    parameters = fleet.parameters(way) | {'doors': "['lerobot']", 'lerobot.port': address.port}
    name = f'gateway_lerobot_{way.replace(" ", "_")}'
    command = [str(executable_path('gateway')), '--ros-args', '-r', f'__node:={name}']
    for key, value in parameters.items():
        command += ['-p', f'{key}:={value}']
    with child(command, folder / f'{name}.log'):
        wait_until_listening(address)
        yield address


@contextlib.contextmanager
def running_immediate_server(folder: Path) -> Iterator[Address]:
    """Start a server that has a chunk ready, and give its address. Raises OSError."""
    address = Address(LOCALHOST, free_port())
    module = 'benchmarks.gateways.immediate_server'
    command = [sys.executable, '-m', module, address.host, str(address.port)]
    with child(command, folder / 'immediate_server.log'):
        wait_until_listening(address)
        yield address


def describe(size: ImageSet, facts: dict[str, object], rounds: int, trips: Trips) -> Case:
    """Return the case: ratios to LeRobot's server."""
    series = {way: [each for each in took if each is not None] for way, took in trips.items()}
    lost = {f'lost by {way}': each.count(None) for way, each in trips.items()}
    series['added by the gateway'] = added_ms(trips[ZENOH], trips[DIRECT])
    series['added to the server with a chunk ready'] = added_ms(trips[ZENOH], trips[IMMEDIATE])
    ways = (IMMEDIATE, ZENOH, ROUTED, ROS, DIRECT)
    ratios = {f'{way} / {THEIRS}': compare(series[way], series[THEIRS]) for way in ways}
    goals = {}
    for way in (ZENOH, ROUTED):
        found = ratios[f'{way} / {THEIRS}']
        goal = f"{way}: median at most {GOAL_RATIO:g} x that of LeRobot's server"
        goals[goal] = bool(found) and found['median'] <= GOAL_RATIO
    goals |= added_goal(size, ZENOH, series['added by the gateway'])
    name = f'{size.cameras} cameras of {size.height}x{size.width}'
    return Case(name, facts, {'rounds': rounds, **lost}, series, ratios, goals)
