# SPDX-License-Identifier: Apache-2.0
"""Causes in the work of a server: its queue, its policy, its refusals. Pure functions."""

from __future__ import annotations

from lerobot_serve.tools.diagnosis.finding import CauseFinding
from lerobot_serve.tools.diagnosis.request_spans import (
    flights,
    growth_finding,
    influence,
    reply_status,
)
from lerobot_serve.tools.diagnosis.timeline import QUOTA
from lerobot_serve.tools.diagnosis.window_facts import (
    BEFORE_S,
    has_grown,
    median_shift,
    MedianShift,
    PeerFacts,
    WindowFacts,
)
from lerobot_serve.tools.traces.fields import number

POLICY_FAILURES = ('policy_error', 'not_finite', 'wrong_shape', 'bad_observation')
# of the other robots of a server
MOST = 2 / 3
TOO_LATE, SUPERSEDED = 'too_late', 'superseded'
NO_SERVER_TRACE = 'no server has a trace of that time'


def server_overloaded(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether requests were refused as too late, or the wait grew for most robots."""
    refused = [request for request in facts.during if reply_status(request) == TOO_LATE]
    if refused:
        words = f'{len(refused)} of {len(facts.during)} requests during refused: its queue is full'
        return CauseFinding(True, words, influence(facts, refused))
    own = growth_finding(facts, 'queue wait', 'queue_wait_ms')
    if not own.is_cause:
        return own
    peer = queue_wait_source(facts)
    if peer is None:
        return CauseFinding(None, f'{own.evidence}; of other robots: {NO_SERVER_TRACE}')
    others = {name: waits for name, waits in peer.waits.items() if name and name != facts.client}
    waiting = {name: median_shift(*waits) for name, waits in others.items() if waits[1]}
    if not waiting:
        return CauseFinding(
            False, f'{own.evidence}; {peer.node} has no record of another robot then'
        )
    usual = median_shift([w for waits in peer.waits.values() for w in waits[0]], [])
    grown = [name for name, each in waiting.items() if has_longer_wait(each, usual)]
    words = (
        f'{own.evidence}; grew for {len(grown)} of {len(waiting)} other robots of '
        f'{peer.node}, which had {rate_text(facts, peer)}'
    )
    # of robots that come together, the first one does not wait
    return CauseFinding(len(grown) >= MOST * len(waiting), words, own.spans)


def own_queue_only(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the queue wait grew for this robot and not for most others."""
    own = growth_finding(facts, 'queue wait', 'queue_wait_ms')
    if not own.is_cause:
        return own
    overloaded = server_overloaded(facts)
    if overloaded.is_cause is None:
        return overloaded
    return CauseFinding(not overloaded.is_cause, overloaded.evidence, own.spans)


def requests_too_often(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether requests of this robot, and of no other, were superseded."""
    recording = [peer for peer in facts.peers if peer.request_counts[1]]
    if not recording:
        return CauseFinding(None, NO_SERVER_TRACE)
    counts = {'own': 0, 'others': 0}
    for peer in recording:
        for (client, status), count in peer.statuses.items():
            if status == SUPERSEDED:
                counts['own' if client == facts.client else 'others'] += count
    words = f'superseded during: {counts["own"]} of this robot, {counts["others"]} of others'
    own = [
        request
        for request in facts.during
        if any(each.record.status == SUPERSEDED for each in request.server_records)
    ]
    return CauseFinding(bool(own and not counts['others']), words, influence(facts, own))


def policy_slow(facts: WindowFacts) -> CauseFinding:
    return growth_finding(facts, 'inference', 'inference_ms')


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
    bad = [request for request in facts.during if reply_status(request) in kinds]
    named = ', '.join(sorted({reply_status(request) for request in bad})) or otherwise
    words = f'{len(bad)} of {len(statuses)} replies during: {named}'
    return CauseFinding(bool(bad), words, influence(facts, bad))


def buffer_too_short(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether round trips always exceeded the buffer."""
    whole = facts.shift_of(lambda request: request.round_trip_ms)
    buffer_s = number(facts.parameters, 'request_threshold_s')
    if not whole.is_known:
        return CauseFinding(None, f'too few requests: round trip {whole.text}')
    if buffer_s is None:
        return CauseFinding(None, 'the header of its edge has no request_threshold_s')
    words = f'round trip {whole.text}; request_threshold_s is {buffer_s:g}'
    return CauseFinding(
        whole.exceeds(buffer_s * 1e3) and not whole.has_grown, words, flights(facts, facts.during)
    )


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


def rate_text(facts: WindowFacts, peer: PeerFacts) -> str:
    """Return the request rate of a server, before and during."""
    onset_s, earliest_s = facts.onset_s, facts.begin_s - BEFORE_S
    begin_s = max(peer.span_s[0], earliest_s) if peer.span_s else earliest_s
    lengths_s = onset_s - begin_s, facts.stall_span_s[1] - onset_s
    before, during = (n / max(s, 1.0) for n, s in zip(peer.request_counts, lengths_s, strict=True))
    return f'{before:.1f} requests per second before, {during:.1f} during'
