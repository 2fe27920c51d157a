# SPDX-License-Identifier: Apache-2.0
"""
One client of another project asks for a chunk: through a gateway, and from the server of its
project; beside both, a session of this package without a gateway. Each way in turn.

openpi's client and LeRobot's RobotClient are their own; each server, gateway and client is a
process of its own. A program asks over HTTP, with pictures as JPEG and raw, in base64, over one
connection. The policy answers at once everywhere. LeRobot's server is spared the pictures: it
reads them and hands none to its policy, while the gateway sends them on. A gRPC server that has a
chunk ready shows what LeRobot's client and gRPC take by themselves.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
from functools import partial
import http.client
import json
from pathlib import Path
import time
from typing import Any

from benchmarks.gateways.gateway_process import (
    Fleet,
    ROS,
    ROUTED,
    running_fleet,
    running_gateway,
    ZENOH,
)
from benchmarks.gateways.wire_requests import jpeg_text
from benchmarks.harness.client import SERVER
from benchmarks.harness.machine import load
from benchmarks.harness.processes import child, module_command
from benchmarks.peers.comparison import alternate, compare
from benchmarks.peers.lerobot import role_of
from benchmarks.peers.peer import free_address, running_client, running_peer
from benchmarks.peers.peer_process import (
    Address,
    CHUNK_ROWS,
    frames,
    ImageSet,
    JOINTS,
    JPEG_QUALITY,
    NULL_POLICY,
    policy_frames,
    wait_until_listening,
    Way,
)
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.peers.this_package import open_way
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'one client of another project through a gateway, and with the server of its project'
SIZES = (ImageSet(1, 240, 256), ImageSet(2, 224, 224), ImageSet(2, 480, 640))
DIRECT = 'session without a gateway, over Zenoh'
IMMEDIATE = 'gRPC server with a chunk ready'
HTTP, JPEG, RAW = 'a program over HTTP', 'HTTP with JPEG', 'HTTP with raw pictures'
DOORS = ('openpi', 'http', 'lerobot')
WARM_UP_ROUNDS, TIMEOUT_S = 20, 10.0
GOAL_ADDED_MS = 1.5
PARAMETERS = {
    **NULL_POLICY,
    'jpeg_quality': JPEG_QUALITY,
    'lerobot_inference_latency': 0,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'each way of one client once, and again',
}
# makes a trip [ms]; None for a lost one
TripMs = Callable[[], float | None]
Trips = dict[str, list[float | None]]
# way of a gateway -> the address of each door
Doors = dict[str, dict[str, Address]]


@dataclass(frozen=True, slots=True)
class Client:
    """A peer's client: the server of its project, and how long a gateway may take beside it."""

    name: str
    theirs: str
    goal_ratio: float


OPENPI = Client('openpi', "openpi's null server", 1.3)
LEROBOT = Client('lerobot', "LeRobot's PolicyServer", 0.5)


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each size and client. Main thread. Raises UserError."""
    return [case for size in SIZES for case in measure_size(size, rounds, folder)]


def measure_size(size: ImageSet, rounds: int, folder: Path) -> list[Case]:
    """Start servers and gateways, and let one client after the other ask. Raises UserError."""
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(size, folder))
        mapping = {'openpi.mapping': write_mapping(size, folder)}
        doors = {
            way: stack.enter_context(running_gateway(fleet, way, DOORS, folder, **mapping))
            for way in (ZENOH, ROUTED, ROS)
        }
        cases = [
            measure_client(client, fleet, doors, rounds, folder) for client in (OPENPI, LEROBOT)
        ]
        return [*cases, measure_http(fleet, doors[ZENOH]['http'], rounds)]


def write_mapping(size: ImageSet, folder: Path) -> Path:
    """Write the names that openpi's client sends, and return the file."""
    cameras = ', '.join(f'observation/{name}: observation.images.{name}' for name in frames(size))
    mapping = (folder / 'mapping.yaml').resolve()
    mapping.write_text(f'cameras: {{{cameras}}}\nstate: [observation/state]\n')
    return mapping


def measure_client(client: Client, fleet: Fleet, doors: Doors, rounds: int, folder: Path) -> Case:
    """Start a peer's server and its clients, and let them ask. Raises UserError."""
    load_before = load()
    try:
        with contextlib.ExitStack() as stack:
            packages = install(client.name, folder / 'peers')
            theirs = stack.enter_context(running_peer(client.name, packages, folder))
            peers = {client.theirs: theirs}
            addresses = {way: of_doors[client.name] for way, of_doors in doors.items()}
            if client is LEROBOT:
                addresses[IMMEDIATE] = start_immediate_server(stack, folder)
            role = role_of(fleet.size) if client is LEROBOT else 'client'
            for way, address in addresses.items():
                name = f'{client.name}_client_{way.replace(" ", "_")}'
                peers[way] = stack.enter_context(
                    running_client(client.name, packages, folder, address, role=role, name=name)
                )
            ways = {way: partial(peer.trip_ms, fleet.size) for way, peer in peers.items()}
            trips = make_rounds(stack, fleet, ways, rounds)
    except PeerUnavailable as reason:
        return Case(f'{client.name} left out', {'reason': str(reason)})
    if not any(each is not None for each in trips[ZENOH]):
        raise UserError(f'no trip through the gateway was answered; see the logs in {folder}')
    facts = {**theirs.versions, 'load_before': load_before, 'load_after': load()}
    return describe(client, fleet.size, facts, trips)


def start_immediate_server(stack: contextlib.ExitStack, folder: Path) -> Address:
    """Start a server that has a chunk ready, and return its address. Raises OSError."""
    address = free_address()
    command = module_command('gateways.immediate_server', address.host, address.port)
    stack.enter_context(child(command, folder / 'immediate_server.log'))
    wait_until_listening(address)
    return address


def make_rounds(
    stack: contextlib.ExitStack, fleet: Fleet, ways: dict[str, TripMs], rounds: int
) -> Trips:
    """Open a session without a gateway, and make the rounds. Raises UserError and Refused."""
    direct = open_way(
        stack, 'bench_direct', Way(SERVER, over_zenoh=True), fleet.nodes[SERVER], fleet.size
    )

    def direct_ms() -> float | None:
        took = direct()
        return took.total_ms if took else None

    every = ways | {DIRECT: direct_ms}
    alternate(every, WARM_UP_ROUNDS)
    return alternate(every, rounds)[0]


def describe(client: Client, size: ImageSet, facts: dict[str, object], trips: Trips) -> Case:
    """Return the case of a peer's client: ratios to its own server, and what a gateway adds."""
    case = describe_ways(f'{client.name}, {size}', size, facts, trips, (ZENOH,))
    series = case.series_ms
    if IMMEDIATE in trips:
        series['added to the server with a chunk ready'] = added_ms(trips[ZENOH], trips[IMMEDIATE])
    case.ratios = {
        f'{way} / {client.theirs}': compare(series[way], series[client.theirs])
        for way in trips
        if way != client.theirs
    }
    for way in (ZENOH, ROUTED):
        found = case.ratios[f'{way} / {client.theirs}']
        goal = f'{way}: median at most {client.goal_ratio:g} x that of {client.theirs}'
        case.goals[goal] = bool(found) and found['median'] <= client.goal_ratio
    return case


def describe_ways(
    name: str, size: ImageSet, facts: dict[str, object], trips: Trips, added: Sequence[str]
) -> Case:
    """Return the case of trips, and what some ways add to the session without a gateway."""
    series = {way: [each for each in took if each is not None] for way, took in trips.items()}
    goals: dict[str, bool] = {}
    for way in added:
        series[f'added by {way}'] = added_ms(trips[way], trips[DIRECT])
        goals |= added_goal(size, way, series[f'added by {way}'])
    counts = {'rounds': len(trips[DIRECT])}
    counts |= {f'lost by {way}': took.count(None) for way, took in trips.items()}
    facts = {'picture_bytes': size.picture_bytes, **facts}
    return Case(name, facts, counts, series, goals=goals)


def added_ms(through: Sequence[float | None], without: Sequence[float | None]) -> list[float]:
    """Return what is added in each round in which both were answered."""
    pairs = zip(through, without, strict=True)
    return [a - b for a, b in pairs if a is not None and b is not None]


def added_goal(size: ImageSet, way: str, added: list[float]) -> dict[str, bool]:
    """Return whether a way adds little to a session without it, for the pictures of the goal."""
    if size != SIZES[0]:
        return {}
    goal = f'{way}: adds at most {GOAL_ADDED_MS:g} ms (p50) to a session without it'
    return {goal: bool(added) and summarize(added)['p50'] <= GOAL_ADDED_MS}


def measure_http(fleet: Fleet, address: Address, rounds: int) -> Case:
    """Let a program ask over HTTP. Raises UserError."""
    load_before = load()
    with contextlib.ExitStack() as stack:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
        stack.callback(connection.close)
        ways: dict[str, TripMs] = {
            JPEG: lambda: act_ms(connection, fleet.size, jpeg_text),
            RAW: lambda: act_ms(connection, fleet.size, raw),
        }
        trips = make_rounds(stack, fleet, ways, rounds)
    facts: dict[str, object] = {'load_before': load_before, 'load_after': load()}
    return describe_ways(f'{HTTP}, {fleet.size}', fleet.size, facts, trips, (JPEG, RAW))


def act_ms(
    connection: http.client.HTTPConnection, size: ImageSet, encode: Callable[[Any], object]
) -> float | None:
    """Return the time of one request, with encoding and decoding [ms]. Raises UserError."""
    begin_ns = time.perf_counter_ns()
    images = {name: encode(frame) for name, frame in policy_frames(size).items()}
    body = {'episode_id': 'bench', 'state': [0.0] * JOINTS, 'images': images}
    connection.request('POST', '/act', json.dumps(body), {'Content-Type': 'application/json'})
    reply = connection.getresponse()
    content = json.loads(reply.read())
    if reply.status != 200:
        raise UserError(f'the gateway replied {reply.status}: {content["error"]["text"]}')
    took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
    return took_ms if len(content['actions']) == CHUNK_ROWS else None


def raw(frame: Any) -> dict[str, object]:
    """Return a picture as JSON has it, not compressed."""
    return {'data': base64.b64encode(frame.tobytes()).decode(), 'shape': list(frame.shape)}
