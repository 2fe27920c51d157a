# SPDX-License-Identifier: Apache-2.0
"""Causes between robot, router and server: what was lost, slow or moved. Pure functions."""

from __future__ import annotations

from lerobot_serve.tools.diagnosis.finding import CauseFinding
from lerobot_serve.tools.diagnosis.request_spans import (
    growth_finding,
    influence,
    lost_requests,
    replica_of,
    reply_status,
    with_aftermath,
)
from lerobot_serve.tools.diagnosis.timeline import NO_SLOT, remainder_or_none
from lerobot_serve.tools.diagnosis.window_facts import GRACE_S, PeerFacts, WindowFacts
from lerobot_serve.tools.traces.fields import number

NO_EDGE_TRACE = 'its own edge has no trace'
# of the reasons of an edge that lost a session by liveliness
UNHEARD = 'unreachable'


def request_lost(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether requests without a reply of a server are missing in its trace."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    lost = lost_requests(facts)
    if peer := peer_that_ran(facts):
        spans = *facts.of_window(facts.lost_spans), *influence(facts, lost)
        return CauseFinding(True, f'the session was lost while {peer.node} ran', spans)
    if not lost:
        return CauseFinding(False, f'0 of {len(facts.during)} requests during had no reply')
    servers = [peer for peer in facts.of_role('server') if peer.joined_requests]
    if not servers:
        return CauseFinding(None, f'{len(lost)} had no reply; no server has a trace of this robot')
    if not all(covers_window(facts, peer) for peer in servers):
        return CauseFinding(
            None, f'{len(lost)} had no reply; the trace of the server is incomplete'
        )
    unknown = [request for request in lost if not request.server_records]
    at_router = sum(1 for request in unknown if request.router_records)
    words = (
        f'{len(lost)} without a reply during; the server has no record of {len(unknown)} of them'
    )
    if any(facts.of_role('router')):
        words += f'; the router has a record of {at_router} of them'
    return CauseFinding(bool(unknown), words, with_aftermath(facts, influence(facts, unknown)))


def reply_lost(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the server replied in time and the edge received no reply."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    if not facts.is_edge_complete:
        return CauseFinding(None, 'the trace of its edge is incomplete or damaged')
    if not any(peer.joined_requests for peer in facts.of_role('server')):
        return CauseFinding(None, 'no server has a trace of this robot')
    timeout_s = number(facts.parameters, 'request_timeout_s')
    missed = lost_requests(facts) + [r for r in facts.during if r.edge_record is None]
    answered = [r for r in missed if any(each.record.status == 'ok' for each in r.server_records)]
    if answered and timeout_s is None:
        return CauseFinding(None, 'the header of its edge has no request_timeout_s')
    limit_ms = (timeout_s or 0.0) * 1e3
    # a router has waited for less
    in_time = [r for r in answered if (r.server_ms or 0.0) < (r.round_trip_ms or limit_ms)]
    words = f'{len(in_time)} replies in time of the server, not accepted by edge or router'
    return CauseFinding(
        bool(in_time),
        f'{words}, of {len(facts.during)} during',
        with_aftermath(facts, influence(facts, in_time)),
    )


def network_slow(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether network time grew, and more than server time."""
    network = growth_finding(facts, 'network', 'network_ms')
    server = facts.shift_of(lambda request: request.server_ms)
    words = f'{network.evidence}; server {server.text}'
    between = facts.shift_of(lambda each: remainder_or_none(each.router_ms, each.server_ms))
    if between.is_known:
        words += f'; of the network between router and server {between.text}'
    is_server = not facts.stalls and server.has_grown
    return CauseFinding(network.is_cause and not is_server, words, network.spans)


def rerouted(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the router moved the robot, changed the replica, or had none."""
    peers = list(facts.of_role('router'))
    if not peers:
        return CauseFinding(None, 'no router has a trace of this robot')
    recording = [request for request in facts.requests.values() if request.router_records]
    before = {replica_of(r) for r in recording if r.end_s < facts.stall_span_s[0]} - {''}
    during = {replica_of(r) for r in recording if facts.is_in_stall(r)} - {''}
    others = sorted(during - before) if before else []
    changes = [words for peer in peers for words in peer.slot_changes]
    failed = [r for r in recording if facts.is_in_stall(r) and not replica_of(r)]
    words = [*facts.episode_moves[:3], *changes[:3]]
    if others:
        words.append(
            f'requests went to {", ".join(others)}, before to {", ".join(sorted(before))}'
        )
    refused = [r for r in recording if facts.is_in_stall(r) and reply_status(r) == NO_SLOT]
    if refused:
        words.append(f'{len(refused)} requests refused: no replica for them')
    figures = words or ['no move, no other replica, slots unchanged']
    spans = influence(facts, [*failed, *refused])
    if other := [r for r in recording if facts.is_in_stall(r) and replica_of(r) in others]:
        first = min(other, key=lambda request: request.end_s)
        # until its first reply the move kept the robot
        spans = *spans, (facts.stall_span_s[0], first.end_s + GRACE_S)
    moved = '; '.join(figures) + f' ({len(failed)} without a reply of a replica)' * bool(failed)
    return CauseFinding(bool(words), moved, spans)


def peer_that_ran(facts: WindowFacts) -> PeerFacts | None:
    """Return the node that an edge no longer heard of, by the whole trace of which it ran."""
    if not any(UNHEARD in why for why in facts.connection_losses):
        return None
    peers = [*facts.of_role('router'), *facts.of_role('server')]
    # the edge talks to the first one
    for peer in peers[:1]:
        if covers_window(facts, peer) and not facts.of_window(peer.still_spans):
            return peer
    return None


def covers_window(facts: WindowFacts, peer: PeerFacts) -> bool:
    """Return whether a trace is complete and covers the whole stall."""
    if not peer.is_complete or peer.span_s is None:
        return False
    begin_s, end_s = peer.span_s
    return begin_s <= facts.onset_s and facts.stall_span_s[1] <= end_s
