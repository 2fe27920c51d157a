# SPDX-License-Identifier: Apache-2.0
"""
Evaluates each cause on the facts of a window: yes, no, or no evidence. Pure functions.

Each finding has its evidence in figures, or names the missing evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest, remainder_or_none
from lerobot_serve.tools.diagnosis.median_shift import has_grown, median_shift, MedianShift
from lerobot_serve.tools.diagnosis.time_of_day import format_utc
from lerobot_serve.tools.diagnosis.window_facts import (
    BEFORE_S,
    CommandCounts,
    PeerFacts,
    WindowFacts,
)
from lerobot_serve.tools.traces.fields import number

POLICY_FAILURES = ('policy_error', 'not_finite', 'wrong_shape', 'bad_observation')
SESSION_LOST = ('no_session', 'draining')
QUOTA = 'quota'
# thresholds: share of changed commands; missed steps
CHANGED_SHARE, MISSED_MIN = 0.05, 2
NO_EDGE_TRACE = 'its own edge has no trace'
NO_SERVER_TRACE = 'no server has a trace of that time'


@dataclass(frozen=True, slots=True)
class CauseFinding:
    """
    `is_cause` is None without evidence; `evidence` has the figures, or names the missing evidence.
    """

    is_cause: bool | None
    evidence: str


def server_overloaded(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the queue wait grew for this robot and all others."""
    own = queue_wait(facts)
    if not own.is_known:
        return too_few_samples('queue wait', own)
    if not own.has_grown:
        return CauseFinding(False, f'queue wait {own.text}')
    peer = queue_wait_source(facts)
    if peer is None:
        return CauseFinding(None, f'queue wait {own.text}; of other robots: {NO_SERVER_TRACE}')
    others = {name: waits for name, waits in peer.waits.items() if name and name != facts.client}
    waiting = {name: median_shift(*waits) for name, waits in others.items() if waits[1]}
    if not waiting:
        return CauseFinding(
            False, f'queue wait {own.text}; {peer.node} has no record of another robot then'
        )
    usual = median_shift([w for waits in peer.waits.values() for w in waits[0]], [])
    grown = [name for name, each in waiting.items() if has_longer_wait(each, usual)]
    words = (
        f'queue wait {own.text}; grew for {len(grown)} of {len(waiting)} other robots of '
        f'{peer.node}, which had {rate_text(facts, peer)}'
    )
    return CauseFinding(len(grown) == len(waiting), words)


def own_queue_only(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the queue wait grew for this robot and not for all others."""
    own, overloaded = queue_wait(facts), server_overloaded(facts)
    if not own.is_known:
        return too_few_samples('queue wait', own)
    if not own.has_grown:
        return CauseFinding(False, f'queue wait {own.text}')
    return CauseFinding(
        None if overloaded.is_cause is None else not overloaded.is_cause, overloaded.evidence
    )


def requests_too_often(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether requests of this robot, and of no other, were superseded."""
    recording = [peer for peer in facts.peers if peer.request_counts[1]]
    if not recording:
        return CauseFinding(None, NO_SERVER_TRACE)
    counts = {'own': 0, 'others': 0}
    for peer in recording:
        for (client, status), count in peer.statuses.items():
            if status == 'superseded':
                counts['own' if client == facts.client else 'others'] += count
    words = f'superseded during: {counts["own"]} of this robot, {counts["others"]} of others'
    return CauseFinding(bool(counts['own'] and not counts['others']), words)


def policy_slow(facts: WindowFacts) -> CauseFinding:
    return growth_finding(facts, 'inference', lambda request: request.inference_ms)


def network_slow(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether network time grew and server time did not."""
    network = facts.shift_of(lambda request: request.network_ms)
    server = facts.shift_of(lambda request: request.server_ms)
    if not (network.is_known and server.is_known):
        return too_few_samples('network', network)
    words = f'network {network.text}; server {server.text}'
    between = facts.shift_of(router_to_server_ms)
    if between.is_known:
        words += f'; of the network between router and server {between.text}'
    return CauseFinding(network.has_grown and not server.has_grown, words)


def policy_failed(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether replies had an error."""
    return _replies_with(facts, POLICY_FAILURES, 'no error')


def quota_used_up(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether requests were refused because of a quota."""
    return _replies_with(facts, (QUOTA,), 'no refusal by a quota')


def _replies_with(facts: WindowFacts, kinds: tuple[str, ...], otherwise: str) -> CauseFinding:
    """Evaluate whether replies had one of some statuses."""
    statuses = [reply_status(request) for request in facts.during]
    if not any(statuses):
        return CauseFinding(None, 'no request during the stall has a recorded reply')
    bad = [status for status in statuses if status in kinds]
    named = ', '.join(sorted(set(bad))) or otherwise
    return CauseFinding(bool(bad), f'{len(bad)} of {len(statuses)} replies during: {named}')


def request_lost(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether requests without a reply are missing in the trace of the server."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    lost = [request for request in facts.during if request.has_no_reply and was_sent(request)]
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
    return CauseFinding(bool(unknown), words)


def reply_lost(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the server replied in time and the edge received no reply."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    if not facts.is_edge_complete:
        return CauseFinding(None, 'the trace of its edge is incomplete or damaged')
    if not any(peer.joined_requests for peer in facts.of_role('server')):
        return CauseFinding(None, 'no server has a trace of this robot')
    timeout_s = number(facts.parameters, 'request_timeout_s')
    missed = [request for request in facts.during if request.status in ('no record', 'timed_out')]
    answered = [request for request in missed if has_server_reply(request)]
    if answered and timeout_s is None:
        return CauseFinding(None, 'the header of its edge has no request_timeout_s')
    in_time = [r for r in answered if (r.server_ms or 0.0) < (timeout_s or 0.0) * 1e3]
    words = f'{len(in_time)} replies sent by the server in time, not accepted by the edge'
    return CauseFinding(bool(in_time), f'{words}, of {len(facts.during)} during')


def rerouted(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the router moved the robot, changed the replica, or slots failed."""
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
    figures = words or ['no move, no other replica, slots unchanged']
    return CauseFinding(
        bool(words), '; '.join(figures) + f' ({len(failed)} not forwarded)' * bool(failed)
    )


def session_lost(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the session was lost, or the server was draining or ended."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    during = facts.during
    statuses = [s for s in map(reply_status, during) if s in SESSION_LOST]
    words = [f'{why} {count}' for why, count in sorted(facts.connection_losses.items())]
    words += [f'{statuses.count(status)} replies {status}' for status in sorted(set(statuses))]
    words += [
        f'the trace of {peer.node} ends at {format_utc(end_s)} without a footer: killed'
        for peer in facts.of_role('server')
        if (end_s := abrupt_end_s(facts, peer)) is not None
    ]
    return CauseFinding(bool(words), ', '.join(words) or 'the connection was not lost')


def cage_intervention(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the cage changed more commands than before."""
    if not facts.commands_during.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    share, usual = (
        commands.changed / max(1, commands.count) for commands in counts_during_and_before(facts)
    )
    before, during = _changed(facts.commands_before), _changed(facts.commands_during)
    words = f'changed by the cage: {before} before, {during} during'
    for reason, _ in facts.commands_during.reasons.most_common(1):
        words += f' ({reason})'
    return CauseFinding(share >= CHANGED_SHARE and share > 2 * usual, words)


def steps_missed(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether control steps were missed between executed actions."""
    if not facts.commands_during.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    before, during = facts.commands_before.missed, facts.commands_during.missed
    words = f'control steps missed: {before} before, {during} during'
    if facts.commands_during.missed >= MISSED_MIN and not facts.is_edge_complete:
        return CauseFinding(
            None, f'{words}; or lost by the trace of its edge, which is incomplete'
        )
    return CauseFinding(facts.commands_during.missed >= MISSED_MIN, words)


def buffer_too_short(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether round trips always exceeded the buffer."""
    whole = facts.shift_of(lambda request: request.round_trip_ms)
    buffer_s = number(facts.parameters, 'request_threshold_s')
    if not whole.is_known:
        return too_few_samples('round trip', whole)
    if buffer_s is None:
        return CauseFinding(None, 'the header of its edge has no request_threshold_s')
    words = f'round trip {whole.text}; request_threshold_s is {buffer_s:g}'
    return CauseFinding(whole.exceeds(buffer_s * 1e3) and not whole.has_grown, words)


def growth_finding(
    facts: WindowFacts, name: str, value: Callable[[JoinedRequest], float | None]
) -> CauseFinding:
    shift = facts.shift_of(value)
    if not shift.is_known:
        return too_few_samples(name, shift)
    return CauseFinding(shift.has_grown, f'{name} {shift.text}')


def too_few_samples(name: str, shift: MedianShift) -> CauseFinding:
    return CauseFinding(None, f'too few requests: {name} {shift.text}')


def queue_wait(facts: WindowFacts) -> MedianShift:
    return facts.shift_of(lambda request: request.queue_wait_ms)


def queue_wait_source(facts: WindowFacts) -> PeerFacts | None:
    """Return the peer that records queue waits of others: the server, else the router."""
    recording = [
        p for p in facts.peers if p.joined_requests and p.waits.get(facts.client, ([], []))[1]
    ]
    return min(recording, key=lambda peer: peer.role != 'server', default=None)


def has_longer_wait(each: MedianShift, usual: MedianShift) -> bool:
    """Return whether the queue wait of a robot grew; a new robot is compared with the others."""
    usual_ms, during_ms = usual.before_p50, each.during_p50
    if each.has_grown:
        return True
    return usual_ms is not None and during_ms is not None and has_grown(usual_ms, during_ms)


def abrupt_end_s(facts: WindowFacts, peer: PeerFacts) -> float | None:
    """Return the end of a server's trace that has no footer and ends before lost requests."""
    if peer.is_ended or not peer.joined_requests or peer.span_s is None:
        return None
    _, end_s = peer.span_s
    lost = [
        request for request in facts.during if was_sent(request) and not request.server_records
    ]
    return end_s if any(end_s <= request.end_s for request in lost) else None


def rate_text(facts: WindowFacts, peer: PeerFacts) -> str:
    """Return the request rate of a server, before and during."""
    onset_s, earliest_s = facts.onset_s, facts.begin_s - BEFORE_S
    begin_s = max(peer.span_s[0], earliest_s) if peer.span_s else earliest_s
    lengths_s = onset_s - begin_s, facts.stall_span_s[1] - onset_s
    before, during = (n / max(s, 1.0) for n, s in zip(peer.request_counts, lengths_s, strict=True))
    return f'{before:.1f} requests per second before, {during:.1f} during'


def covers_window(facts: WindowFacts, peer: PeerFacts) -> bool:
    """Return whether a trace is complete and covers the whole stall."""
    if not peer.is_complete or peer.span_s is None:
        return False
    begin_s, end_s = peer.span_s
    return begin_s <= facts.onset_s and facts.stall_span_s[1] <= end_s


def reply_status(request: JoinedRequest) -> str:
    """Return the status recorded by the edge, else by the server, then the router."""
    recorded = [request.edge_record] if request.edge_record and not request.has_no_reply else []
    recorded += [each.record for each in (*request.server_records, *request.router_records)]
    return recorded[0].status if recorded else ''


def was_sent(request: JoinedRequest) -> bool:
    """Return whether the edge sent the request; an abandoned one may not have been sent."""
    return request.status == 'timed_out'


def has_server_reply(request: JoinedRequest) -> bool:
    return any(each.record.status == 'ok' for each in request.server_records)


def router_to_server_ms(request: JoinedRequest) -> float | None:
    return remainder_or_none(request.router_ms, request.server_ms)


def replica_of(request: JoinedRequest) -> str:
    return next((each.record.server for each in request.router_records), '')


def counts_during_and_before(facts: WindowFacts) -> tuple[CommandCounts, CommandCounts]:
    return facts.commands_during, facts.commands_before


def _changed(commands: CommandCounts) -> str:
    return f'{commands.changed} of {commands.count}'
