# SPDX-License-Identifier: Apache-2.0
"""
openpi's client asks for a chunk: through a gateway, and from openpi's null server, in turn.

Client and format are those of the package openpi-client; each server, gateway and client is a
process of its own. The policy behind the gateway answers at once, too.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path

from benchmarks.gateways.gateway_process import (
    DIRECT,
    direct_session,
    ROS,
    ROUTED,
    running_fleet,
    running_gateway,
    SIZES,
    ZENOH,
)
from benchmarks.peers.comparison import compare
from benchmarks.peers.peer import Peer, running_client, running_peer
from benchmarks.peers.peer_process import CHUNK_ROWS, ImageSet, JOINTS
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.telemetry.percentiles import summarize

ABOUT = "openpi's client through a gateway, and with openpi's null server"
NULL_SERVER = "openpi's null server"
WARM_UP_ROUNDS = 20
GOAL_RATIO, GOAL_ADDED_MS = 1.3, 1.5
PARAMETERS = {
    'state': JOINTS,
    'chunk': f'{CHUNK_ROWS}x{JOINTS}',
    'policy': 'null',
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'each way once, and again',
}
# makes a trip [ms]; None for a lost one
TripMs = Callable[[], float | None]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each size. Main thread. Raises UserError."""
    try:
        packages = install('openpi', folder / 'peers')
        with running_peer('openpi', packages, folder) as null_server:
            return [measure_case(null_server, packages, size, rounds, folder) for size in SIZES]
    except PeerUnavailable as reason:
        return [Case('left out', {'reason': str(reason)})]


def measure_case(
    null_server: Peer, packages: Path, size: ImageSet, rounds: int, folder: Path
) -> Case:
    """Start servers and gateways, make the rounds. Raises UserError and PeerUnavailable."""
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(size, folder))
        ways: dict[str, TripMs] = {NULL_SERVER: trip_of(null_server, size)}
        for way in (ZENOH, ROUTED, ROS):
            address = stack.enter_context(running_gateway(fleet, way, 'openpi', size, folder))
            client = running_client('openpi', packages, folder, address, name=log_name(way))
            ways[way] = trip_of(stack.enter_context(client), size)
        ways[DIRECT] = stack.enter_context(direct_session(fleet, size))
        alternate(ways, WARM_UP_ROUNDS)
        trips = alternate(ways, rounds)
    lost = {f'lost by {way}': each.count(None) for way, each in trips.items()}
    if not any(each is not None for each in trips[ZENOH]):
        raise UserError(f'no trip through the gateway was answered; see the logs in {folder}')
    facts = {'picture_bytes': size.picture_bytes, **null_server.versions}
    facts |= {'load_before': round(load_before, 2), 'load_after': round(os.getloadavg()[0], 2)}
    return describe(size, facts, {'rounds': rounds, **lost}, trips)


def log_name(way: str) -> str:
    return f'openpi_client_{way.replace(" ", "_")}'


def trip_of(peer: Peer, size: ImageSet) -> TripMs:
    return lambda: peer.trip_ms(size)


def alternate(ways: dict[str, TripMs], rounds: int) -> dict[str, list[float | None]]:
    """Make the rounds, one trip on each way."""
    trips: dict[str, list[float | None]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, trip_ms in ways.items():
            trips[way].append(trip_ms())
    return trips


def describe(
    size: ImageSet,
    facts: dict[str, object],
    counts: dict[str, int],
    trips: dict[str, list[float | None]],
) -> Case:
    """Return the case: ratios to the null server, and what the gateway adds to a session."""
    series = {way: [each for each in took if each is not None] for way, took in trips.items()}
    series['added by the gateway'] = added_ms(trips[ZENOH], trips[DIRECT])
    ways = (ZENOH, ROUTED, ROS, DIRECT)
    ratios = {f'{way} / {NULL_SERVER}': compare(series[way], series[NULL_SERVER]) for way in ways}
    name = f'{size.cameras} cameras of {size.height}x{size.width}'
    return Case(name, facts, counts, series, ratios, goals(size, ratios, series))


def added_ms(through: list[float | None], without: list[float | None]) -> list[float]:
    """Return what the gateway adds in each round in which both were answered."""
    pairs = zip(through, without, strict=True)
    return [a - b for a, b in pairs if a is not None and b is not None]


def goals(
    size: ImageSet, ratios: dict[str, dict[str, float]], series: dict[str, list[float]]
) -> dict[str, bool]:
    """Return whether the gateway is as fast as it is meant to be."""
    said = {}
    for way in (ZENOH, ROUTED):
        found = ratios[f'{way} / {NULL_SERVER}']
        goal = f"{way}: median at most {GOAL_RATIO:g} x that of openpi's null server"
        said[goal] = bool(found) and found['median'] <= GOAL_RATIO
    return said | added_goal(size, ZENOH, series['added by the gateway'])


def added_goal(size: ImageSet, way: str, added: list[float]) -> dict[str, bool]:
    """Return whether a way adds little to a session without it, for the pictures of the goal."""
    if size != SIZES[0]:
        return {}
    goal = f'{way}: adds at most {GOAL_ADDED_MS:g} ms (p50) to a session without it'
    return {goal: bool(added) and summarize(added)['p50'] <= GOAL_ADDED_MS}
