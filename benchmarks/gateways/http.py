# SPDX-License-Identifier: Apache-2.0
"""
A program asks for a chunk over HTTP, with pictures as JPEG and raw, in base64; beside it a session
of this package without a gateway, which sends raw pictures. One connection is kept.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
from pathlib import Path
import time

import simplejpeg

from benchmarks.gateways.gateway_process import (
    DIRECT,
    direct_session,
    running_fleet,
    running_gateway,
    SIZES,
    ZENOH,
)
from benchmarks.gateways.openpi import added_goal, added_ms, alternate, TripMs, WARM_UP_ROUNDS
from benchmarks.peers.peer_process import CHUNK_ROWS, frames, ImageSet, JOINTS
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError

ABOUT = 'HTTP /act through a gateway, against a session without one'
JPEG, RAW = 'HTTP with JPEG', 'HTTP with raw pictures'
JPEG_QUALITY, TIMEOUT_S = 90, 10.0
PARAMETERS = {
    'state': JOINTS,
    'chunk': f'{CHUNK_ROWS}x{JOINTS}',
    'policy': 'null',
    'jpeg_quality': JPEG_QUALITY,
    'warm_up_rounds': WARM_UP_ROUNDS,
    'in_flight': 1,
    'order': 'each way once, and again',
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each size. Main thread. Raises UserError."""
    return [measure_case(size, rounds, folder) for size in SIZES]


def measure_case(size: ImageSet, rounds: int, folder: Path) -> Case:
    """Start server and gateway, make the rounds. Raises UserError."""
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(size, folder))
        address = stack.enter_context(running_gateway(fleet, ZENOH, 'http', size, folder))
        connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
        stack.callback(connection.close)
        ways: dict[str, TripMs] = {
            JPEG: lambda: act_ms(connection, size, is_jpeg=True),
            RAW: lambda: act_ms(connection, size, is_jpeg=False),
            DIRECT: stack.enter_context(direct_session(fleet, size)),
        }
        alternate(ways, WARM_UP_ROUNDS)
        trips = alternate(ways, rounds)
    facts: dict[str, object] = {'load_before': round(load_before, 2)}
    facts |= {'load_after': round(os.getloadavg()[0], 2)}
    return describe(size, facts, rounds, trips)


def describe(
    size: ImageSet, facts: dict[str, object], rounds: int, trips: dict[str, list[float | None]]
) -> Case:
    """Return the case: what each encoding adds to a session without a gateway."""
    series = {way: [each for each in took if each is not None] for way, took in trips.items()}
    goals: dict[str, bool] = {}
    for way in (JPEG, RAW):
        series[f'added by {way}'] = added_ms(trips[way], trips[DIRECT])
        goals |= added_goal(size, way, series[f'added by {way}'])
    counts = {'rounds': rounds, **{f'lost by {w}': each.count(None) for w, each in trips.items()}}
    name = f'{size.cameras} cameras of {size.height}x{size.width}'
    return Case(name, {'picture_bytes': size.picture_bytes, **facts}, counts, series, goals=goals)


def act_ms(
    connection: http.client.HTTPConnection, size: ImageSet, *, is_jpeg: bool
) -> float | None:
    """Return the time of one request, with encoding and decoding [ms]. Raises UserError."""
    begin_ns = time.perf_counter_ns()
    images = {
        f'observation.images.{name}': image(frame, is_jpeg) for name, frame in frames(size).items()
    }
    body = {'episode_id': 'bench', 'state': [0.0] * JOINTS, 'images': images}
    connection.request('POST', '/act', json.dumps(body), {'Content-Type': 'application/json'})
    reply = connection.getresponse()
    content = json.loads(reply.read())
    if reply.status != 200:
        raise UserError(f'the gateway replied {reply.status}: {content["error"]["text"]}')
    took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
    return took_ms if len(content['actions']) == CHUNK_ROWS else None


def image(frame: object, is_jpeg: bool) -> object:
    """Return a picture as JSON has it."""
    if is_jpeg:
        data = simplejpeg.encode_jpeg(frame, quality=JPEG_QUALITY, colorspace='RGB')
        return base64.b64encode(data).decode()
    return {'data': base64.b64encode(frame.tobytes()).decode(), 'shape': list(frame.shape)}
