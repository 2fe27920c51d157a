"""
What each rule looks at: a finding that says yes, no, or why that is not told. Pure functions.

No cause is ever named without figures; where the evidence is not there the finding says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest
from lerobot_serve.tools.diagnosis.median_shift import has_grown, median_shift, MedianShift
from lerobot_serve.tools.diagnosis.time_of_day import format_utc
from lerobot_serve.tools.diagnosis.window_facts import CommandCounts, PeerFacts, WindowFacts
from lerobot_serve.tools.traces.fields import number, text

POLICY_FAILURES = ('policy_error', 'not_finite', 'wrong_shape', 'bad_observation')
SESSION_LOST = ('no_session', 'draining')
# a share of commands that the cage changed above which it is felt
CHANGED_SHARE, MISSED_MIN = 0.05, 2
NO_EDGE_TRACE = 'its own edge has no trace'
NO_SERVER_TRACE = 'no server has a trace of that time'


@dataclass(frozen=True, slots=True)
class CauseFinding:
    """`is_cause` is None where it is not told; `figures` are what it stands on, or why it is not."""

    is_cause: bool | None
    figures: str


def server_overloaded(facts: WindowFacts) -> CauseFinding:
    """Whether the queue wait grew for the robot and for all others at that time."""
    own = queue_wait(facts)
    if not own.is_known:
        return too_few_samples('queue wait', own)
    if not own.grew:
        return CauseFinding(False, f'queue wait {own.words}')
    peer = queue_wait_source(facts)
    if peer is None:
        return CauseFinding(None, f'queue wait {own.words}; of other robots: {NO_SERVER_TRACE}')
    others = {name: waits for name, waits in peer.waits.items() if name and name != facts.client}
    waiting = {name: median_shift(*waits) for name, waits in others.items() if waits[1]}
    if not waiting:
        return CauseFinding(
            False, f'queue wait {own.words}; {peer.node} tells of no other robot then'
        )
    usual = median_shift([w for waits in peer.waits.values() for w in waits[0]], [])
    grown = [name for name, each in waiting.items() if has_longer_wait(each, usual)]
    words = (
        f'queue wait {own.words}; grew for {len(grown)} of {len(waiting)} other robots of '
        f'{peer.node}, which had {rate_text(facts, peer)}'
    )
    return CauseFinding(len(grown) == len(waiting), words)


def own_queue_only(facts: WindowFacts) -> CauseFinding:
    """Whether the robot waited at the server and others did not."""
    own, overloaded = queue_wait(facts), server_overloaded(facts)
    if not own.is_known:
        return too_few_samples('queue wait', own)
    if not own.grew:
        return CauseFinding(False, f'queue wait {own.words}')
    return CauseFinding(
        None if overloaded.is_cause is None else not overloaded.is_cause, overloaded.figures
    )


def requests_too_often(facts: WindowFacts) -> CauseFinding:
    """Whether newer requests of this robot, and of no other, took the place of older ones."""
    tellers = [peer for peer in facts.peers if peer.seen[1]]
    if not tellers:
        return CauseFinding(None, NO_SERVER_TRACE)
    counts = {'own': 0, 'others': 0}
    for peer in tellers:
        for (client, status), count in peer.statuses.items():
            if status == 'superseded':
                counts['own' if client == facts.client else 'others'] += count
    words = f'superseded during: {counts["own"]} of this robot, {counts["others"]} of others'
    return CauseFinding(bool(counts['own'] and not counts['others']), words)


def policy_slow(facts: WindowFacts) -> CauseFinding:
    return growth_finding(facts, 'inference', lambda request: request.part('inference_ms'))


def network_slow(facts: WindowFacts) -> CauseFinding:
    """Whether the way grew and the server's time did not."""
    way = facts.figure(lambda request: request.network_ms)
    served = facts.figure(lambda request: request.server_ms)
    if not (way.is_known and served.is_known):
        return too_few_samples('network', way)
    words = f'network {way.words}; server {served.words}'
    between = facts.figure(router_to_server_ms)
    if between.is_known:
        words += f'; of the network between router and server {between.words}'
    return CauseFinding(way.grew and not served.grew, words)


def policy_failed(facts: WindowFacts) -> CauseFinding:
    """Whether answers told of an error."""
    told = [reply_status(request) for request in facts.during]
    if not any(told):
        return CauseFinding(None, 'of no request during the trouble is told how it was answered')
    bad = [status for status in told if status in POLICY_FAILURES]
    kinds = ', '.join(sorted(set(bad))) or 'no error'
    return CauseFinding(bool(bad), f'{len(bad)} of {len(told)} answers during: {kinds}')


def request_lost(facts: WindowFacts) -> CauseFinding:
    """Whether requests ended without an answer of which the server knows nothing."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    lost = [request for request in facts.during if request.is_lost and has_left_robot(request)]
    if not lost:
        return CauseFinding(False, f'0 of {len(facts.during)} requests during went unanswered')
    servers = [peer for peer in facts.of_role('server') if peer.pairs]
    if not servers:
        return CauseFinding(
            None, f'{len(lost)} went unanswered; no server has a trace of this robot'
        )
    if not all(covers_window(facts, peer) for peer in servers):
        return CauseFinding(
            None, f'{len(lost)} went unanswered; the server has not all of its trace'
        )
    unknown = [request for request in lost if not request.servers]
    at_router = sum(1 for request in unknown if request.routers)
    words = f'{len(lost)} unanswered during, of which the server has no record of {len(unknown)}'
    if any(facts.of_role('router')):
        words += f'; the router has a record of {at_router} of them'
    return CauseFinding(bool(unknown), words)


def reply_lost(facts: WindowFacts) -> CauseFinding:
    """Whether the server answered in time what the edge never got."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    if not facts.is_edge_complete:
        return CauseFinding(None, 'the trace of its edge has lost records or is damaged')
    if not any(peer.pairs for peer in facts.of_role('server')):
        return CauseFinding(None, 'no server has a trace of this robot')
    patience_s = number(facts.parameters, 'request_timeout_s')
    missed = [request for request in facts.during if request.status in ('no record', 'timed_out')]
    answered = [request for request in missed if has_server_reply(request)]
    if answered and patience_s is None:
        return CauseFinding(None, 'the header of its edge has no request_timeout_s')
    in_time = [r for r in answered if (r.server_ms or 0.0) < (patience_s or 0.0) * 1e3]
    words = f'{len(in_time)} answered by the server in time, never accepted by the edge'
    return CauseFinding(bool(in_time), f'{words}, of {len(facts.during)} during')


def rerouted(facts: WindowFacts) -> CauseFinding:
    """Whether the robot was moved, or its requests went to another replica, or slots failed."""
    peers = list(facts.of_role('router'))
    if not peers:
        return CauseFinding(None, 'no router has a trace of this robot')
    tellers = [request for request in facts.requests.values() if request.routers]
    before = {replica_of(r) for r in tellers if r.end_s < facts.trouble_s[0]} - {''}
    during = {replica_of(r) for r in tellers if facts.is_during(r)} - {''}
    others = sorted(during - before) if before else []
    changes = [words for peer in peers for words in peer.slot_changes]
    failed = [r for r in tellers if facts.is_during(r) and not replica_of(r)]
    words = [*facts.moves[:3], *changes[:3]]
    if others:
        words.append(
            f'requests went to {", ".join(others)}, before to {", ".join(sorted(before))}'
        )
    said = words or ['no move, no other replica, slots unchanged']
    return CauseFinding(
        bool(words), '; '.join(said) + f' ({len(failed)} not passed on)' * bool(failed)
    )


def session_lost(facts: WindowFacts) -> CauseFinding:
    """Whether the session was lost, or the server was leaving."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    during = facts.during
    told = [reply_status(request) for request in during if reply_status(request) in SESSION_LOST]
    words = [f'{why} {count}' for why, count in sorted(facts.connection.items())]
    words += [f'{told.count(status)} answers {status}' for status in sorted(set(told))]
    words += [
        f'the trace of {peer.node} breaks off at {format_utc(peer.end_s)}: it was killed'
        for peer in facts.of_role('server')
        if ended_abruptly(facts, peer)
    ]
    return CauseFinding(bool(words), ', '.join(words) or 'the connection was not lost')


def cage_intervention(facts: WindowFacts) -> CauseFinding:
    """Whether the cage changed more commands than before."""
    if not facts.rough.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    share, usual = (
        commands.changed / max(1, commands.count) for commands in counts_during_and_before(facts)
    )
    words = f'changed by the cage: {_changed(facts.calm)} before, {_changed(facts.rough)} during'
    for reason, _ in facts.rough.reasons.most_common(1):
        words += f' ({reason})'
    return CauseFinding(share >= CHANGED_SHARE and share > 2 * usual, words)


def steps_missed(facts: WindowFacts) -> CauseFinding:
    """Whether control steps were left out in the midst of playing."""
    if not facts.rough.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    words = f'control steps missed: {facts.calm.missed} before, {facts.rough.missed} during'
    if facts.rough.missed >= MISSED_MIN and not facts.is_edge_complete:
        return CauseFinding(None, f'{words}; or lost by the trace of its edge, which is not whole')
    return CauseFinding(facts.rough.missed >= MISSED_MIN, words)


def buffer_too_short(facts: WindowFacts) -> CauseFinding:
    """Whether answers always took longer than what is buffered when they are asked for."""
    whole = facts.figure(lambda request: request.round_trip_ms)
    buffer_s = number(facts.parameters, 'buffer_time_s')
    if not whole.is_known:
        return too_few_samples('round trip', whole)
    if buffer_s is None:
        return CauseFinding(None, 'the header of its edge has no buffer_time_s')
    words = f'round trip {whole.words}; buffer_time_s is {buffer_s:g}'
    is_long = min(whole.before_p50, whole.during_p50) >= buffer_s * 1e3
    return CauseFinding(is_long and not whole.grew, words)


def growth_finding(facts: WindowFacts, name: str, value: object) -> CauseFinding:
    found = facts.figure(value)
    if not found.is_known:
        return too_few_samples(name, found)
    return CauseFinding(found.grew, f'{name} {found.words}')


def too_few_samples(name: str, found: MedianShift) -> CauseFinding:
    return CauseFinding(None, f'too few requests tell of it: {name} {found.words}')


def queue_wait(facts: WindowFacts) -> MedianShift:
    return facts.figure(lambda request: request.part('queue_wait_ms'))


def queue_wait_source(facts: WindowFacts) -> PeerFacts | None:
    """Return who tells of the queue waits of others: the server, else the router."""
    tellers = [p for p in facts.peers if p.pairs and p.waits.get(facts.client, ([], []))[1]]
    return min(tellers, key=lambda peer: peer.role != 'server', default=None)


def has_longer_wait(each: MedianShift, usual: MedianShift) -> bool:
    """Tell whether a robot waited longer than it did; a new one, than all others did."""
    usual_ms = usual.before_p50
    return each.grew or (usual_ms is not None and has_grown(usual_ms, each.during_p50))


def ended_abruptly(facts: WindowFacts, peer: PeerFacts) -> bool:
    """Tell whether a server's trace has no end and stops where requests get no answer."""
    if peer.is_ended or not peer.pairs or peer.end_s is None:
        return False
    lost = [request for request in facts.during if has_left_robot(request) and not request.servers]
    return any(peer.end_s <= request.end_s for request in lost)


def rate_text(facts: WindowFacts, peer: PeerFacts) -> str:
    """Return how many requests a second a server had, before and during."""
    onset_s = facts.onset_s
    lengths_s = onset_s - max(peer.begin_s, facts.begin_s - 60.0), facts.trouble_s[1] - onset_s
    before, during = (n / max(s, 1.0) for n, s in zip(peer.seen, lengths_s, strict=True))
    return f'{before:.1f} requests a second before, {during:.1f} during'


def covers_window(facts: WindowFacts, peer: PeerFacts) -> bool:
    """Tell whether a trace is whole, and begins before the trouble and ends after it."""
    is_known = peer.is_whole and peer.begin_s is not None
    return is_known and peer.begin_s <= facts.onset_s and facts.trouble_s[1] <= peer.end_s


def reply_status(request: JoinedRequest) -> str:
    """Return what was answered, as the edge has it; else as the server, then the router."""
    told = [request.edge] if request.edge and not request.is_lost else []
    told += [each.record for each in (*request.servers, *request.routers)]
    return text(told[0], 'status') if told else ''


def has_left_robot(request: JoinedRequest) -> bool:
    """Tell whether it left the robot: one that was given up may not even have been sent."""
    return request.status == 'timed_out'


def has_server_reply(request: JoinedRequest) -> bool:
    return any(text(told.record, 'status') == 'ok' for told in request.servers)


def router_to_server_ms(request: JoinedRequest) -> float | None:
    if request.router_ms is None or request.server_ms is None:
        return None
    return max(0.0, request.router_ms - request.server_ms)


def replica_of(request: JoinedRequest) -> str:
    return next((text(told.record, 'server') for told in request.routers), '')


def counts_during_and_before(facts: WindowFacts) -> tuple[CommandCounts, CommandCounts]:
    return facts.rough, facts.calm


def _changed(commands: CommandCounts) -> str:
    return f'{commands.changed} of {commands.count}'
