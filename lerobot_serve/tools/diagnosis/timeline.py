# SPDX-License-Identifier: Apache-2.0
"""Formats the timeline of a window: requests with the parts of their time, and events."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts

# minimum number of consecutive normal replies that become one line
FOLD_MIN = 3


def timeline_lines(facts: WindowFacts) -> list[tuple[float, str]]:
    """
    Return times by the clock of the robot with texts; consecutive normal replies are one line.
    """
    written: list[tuple[float, str]] = []
    normal: list[JoinedRequest] = []
    for time_s, what in sorted(_all(facts), key=itemgetter(0)):
        if isinstance(what, JoinedRequest) and is_foldable(what, facts):
            normal.append(what)
            continue
        written += _normal_lines(normal, facts)
        normal = []
        words = describe_request(what, facts) if isinstance(what, JoinedRequest) else what
        written.append((time_s, words))
    return written + _normal_lines(normal, facts)


def is_foldable(request: JoinedRequest, facts: WindowFacts) -> bool:
    """Return whether the request has a normal reply outside the stall."""
    is_plain = request.status == 'ok' and len(request.server_records) < 2
    return is_plain and bool(facts.stalls) and not facts.is_in_stall(request)


def _all(facts: WindowFacts) -> Iterator[tuple[float, JoinedRequest | str]]:
    for each in facts.events:
        yield each.time_s, f'{each.node}  {each.text}'
    for request in facts.requests.values():
        if facts.begin_s <= request.end_s <= facts.end_s:
            yield request.end_s, request


def _normal_lines(normal: list[JoinedRequest], facts: WindowFacts) -> list[tuple[float, str]]:
    if len(normal) < FOLD_MIN:
        return [(request.end_s, describe_request(request, facts)) for request in normal]
    words = (
        f'{facts.client}  requests {normal[0].key.seq} to {normal[-1].key.seq}: {len(normal)} ok'
    )
    trips = [r.round_trip_ms for r in normal if r.round_trip_ms is not None]
    if trips:
        words += f', {min(trips):.0f} to {max(trips):.0f} ms'
    return [(normal[0].end_s, words)]


def describe_request(request: JoinedRequest, facts: WindowFacts) -> str:
    """Return one request: its status, the parts of its time, the records of other nodes."""
    words = [f'{facts.client}  request {request.key.seq} {request.status}']
    if request.edge_record and (reason := request.edge_record.reason):
        words[0] += f' ({reason})'
    parts = ' + '.join(_parts(request))
    whole = request.round_trip_ms
    if whole is not None:
        words[0] += f': {whole:.0f} ms' + (f' = {parts}' if parts else '')
    elif parts:
        words[0] += f': {parts}'
    return '; '.join([*words, *_peer_details(request, facts)])


def _parts(request: JoinedRequest) -> Iterator[str]:
    for name, value_ms in (
        ('network', request.network_ms),
        ('queue wait', request.queue_wait_ms),
        ('processing', request.processing_ms),
        ('inference', request.inference_ms),
    ):
        if value_ms is not None:
            yield f'{name} {value_ms:.0f}'


def _peer_details(request: JoinedRequest, facts: WindowFacts) -> Iterator[str]:
    """Yield the additional information recorded by router and server."""
    for each in request.router_records:
        record = each.record
        replica = ' '.join(word for word in (record.slot, record.server) if word)
        status = f', {record.status}' if record.status != 'ok' else ''
        yield f'router: {replica or "no replica"}{status}'
    if request.is_lost or request.has_no_reply or request.edge_record is None:
        for each in request.server_records:
            yield f'server: {each.record.status or "?"}'
        if not request.server_records and any(facts.of_role('server')):
            yield 'server: no record'
    if len(request.server_records) > 1:
        yield f'sent {len(request.server_records)} times'
