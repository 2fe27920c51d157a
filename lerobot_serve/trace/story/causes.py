"""
What each rule looks at: a finding that says yes, no, or why that is not told. Pure functions.

No cause is ever named without figures; where the evidence is not there the finding says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.trace.audit.fields import number, text
from lerobot_serve.trace.story.facts import Commands, Facts, Peer
from lerobot_serve.trace.story.figures import Figure, figure, grew
from lerobot_serve.trace.story.moment import clock
from lerobot_serve.trace.story.request import Request

FAILED = ('policy_error', 'not_finite', 'wrong_shape', 'bad_observation')
GONE = ('no_session', 'draining')
# a share of commands that the cage changed above which it is felt
CHANGED_SHARE, MISSED_MIN = 0.05, 2
ITS_OWN = 'its own edge has no trace'
NO_SERVER = 'no server has a trace of that time'


@dataclass(frozen=True, slots=True)
class Finding:
    """`is_so` is None where it is not told; `figures` are what it stands on, or why it is not."""

    is_so: bool | None
    figures: str


def server_overloaded(facts: Facts) -> Finding:
    """Whether the queue wait grew for the robot and for all others at that time."""
    own = queue_wait(facts)
    if not own.is_known:
        return not_enough('queue wait', own)
    if not own.grew:
        return Finding(False, f'queue wait {own.words}')
    peer = queue_teller(facts)
    if peer is None:
        return Finding(None, f'queue wait {own.words}; of other robots: {NO_SERVER}')
    others = {name: waits for name, waits in peer.waits.items() if name and name != facts.client}
    waiting = {name: figure(*waits) for name, waits in others.items() if waits[1]}
    if not waiting:
        return Finding(False, f'queue wait {own.words}; {peer.node} tells of no other robot then')
    usual = figure([w for waits in peer.waits.values() for w in waits[0]], [])
    grown = [name for name, each in waiting.items() if waited(each, usual)]
    words = (
        f'queue wait {own.words}; grew for {len(grown)} of {len(waiting)} other robots of '
        f'{peer.node}, which had {rate(facts, peer)}'
    )
    return Finding(len(grown) == len(waiting), words)


def queue_of_its_own(facts: Facts) -> Finding:
    """Whether the robot waited at the server and others did not."""
    own, overloaded = queue_wait(facts), server_overloaded(facts)
    if not own.is_known:
        return not_enough('queue wait', own)
    if not own.grew:
        return Finding(False, f'queue wait {own.words}')
    return Finding(None if overloaded.is_so is None else not overloaded.is_so, overloaded.figures)


def asks_too_often(facts: Facts) -> Finding:
    """Whether newer requests of this robot, and of no other, took the place of older ones."""
    tellers = [peer for peer in facts.peers if peer.seen[1]]
    if not tellers:
        return Finding(None, NO_SERVER)
    counts = {'own': 0, 'others': 0}
    for peer in tellers:
        for (client, status), count in peer.statuses.items():
            if status == 'superseded':
                counts['own' if client == facts.client else 'others'] += count
    words = f'superseded during: {counts["own"]} of this robot, {counts["others"]} of others'
    return Finding(bool(counts['own'] and not counts['others']), words)


def policy_slow(facts: Facts) -> Finding:
    return growth(facts, 'inference', lambda request: request.part('inference_ms'))


def network(facts: Facts) -> Finding:
    """Whether the way grew and the server's time did not."""
    way = facts.figure(lambda request: request.network_ms)
    served = facts.figure(lambda request: request.server_ms)
    if not (way.is_known and served.is_known):
        return not_enough('network', way)
    words = f'network {way.words}; server {served.words}'
    between = facts.figure(between_router_and_server)
    if between.is_known:
        words += f'; of the network between router and server {between.words}'
    return Finding(way.grew and not served.grew, words)


def policy_failed(facts: Facts) -> Finding:
    """Whether answers told of an error."""
    told = [status_of(request) for request in facts.during]
    if not any(told):
        return Finding(None, 'of no request during the trouble is told how it was answered')
    bad = [status for status in told if status in FAILED]
    kinds = ', '.join(sorted(set(bad))) or 'no error'
    return Finding(bool(bad), f'{len(bad)} of {len(told)} answers during: {kinds}')


def lost_or_hung(facts: Facts) -> Finding:
    """Whether requests ended without an answer of which the server knows nothing."""
    if not facts.has_edge:
        return Finding(None, ITS_OWN)
    lost = [request for request in facts.during if request.is_lost and is_sent(request)]
    if not lost:
        return Finding(False, f'0 of {len(facts.during)} requests during went unanswered')
    servers = [peer for peer in facts.of_role('server') if peer.pairs]
    if not servers:
        return Finding(None, f'{len(lost)} went unanswered; no server has a trace of this robot')
    if not all(covers(facts, peer) for peer in servers):
        return Finding(None, f'{len(lost)} went unanswered; the server has not all of its trace')
    unknown = [request for request in lost if not request.servers]
    at_router = sum(1 for request in unknown if request.routers)
    words = f'{len(lost)} unanswered during, of which the server has no record of {len(unknown)}'
    if any(facts.of_role('router')):
        words += f'; the router has a record of {at_router} of them'
    return Finding(bool(unknown), words)


def answer_lost(facts: Facts) -> Finding:
    """Whether the server answered in time what the edge never got."""
    if not facts.has_edge:
        return Finding(None, ITS_OWN)
    if not facts.is_edge_whole:
        return Finding(None, 'the trace of its edge has lost records or is damaged')
    if not any(peer.pairs for peer in facts.of_role('server')):
        return Finding(None, 'no server has a trace of this robot')
    patience_s = number(facts.parameters, 'request_timeout_s')
    missed = [request for request in facts.during if request.status in ('no record', 'timed_out')]
    answered = [request for request in missed if answered_at_server(request)]
    if answered and patience_s is None:
        return Finding(None, 'the header of its edge has no request_timeout_s')
    in_time = [r for r in answered if (r.server_ms or 0.0) < (patience_s or 0.0) * 1e3]
    words = f'{len(in_time)} answered by the server in time, never accepted by the edge'
    return Finding(bool(in_time), f'{words}, of {len(facts.during)} during')


def router(facts: Facts) -> Finding:
    """Whether the robot was moved, or its requests went to another replica, or slots failed."""
    peers = list(facts.of_role('router'))
    if not peers:
        return Finding(None, 'no router has a trace of this robot')
    tellers = [request for request in facts.requests.values() if request.routers]
    before = {replica(r) for r in tellers if r.end_s < facts.trouble_s[0]} - {''}
    during = {replica(r) for r in tellers if facts.is_during(r)} - {''}
    others = sorted(during - before) if before else []
    changes = [words for peer in peers for words in peer.slots_changed]
    failed = [r for r in tellers if facts.is_during(r) and not replica(r)]
    words = [*facts.moves[:3], *changes[:3]]
    if others:
        words.append(
            f'requests went to {", ".join(others)}, before to {", ".join(sorted(before))}'
        )
    said = words or ['no move, no other replica, slots unchanged']
    return Finding(bool(words), '; '.join(said) + f' ({len(failed)} not passed on)' * bool(failed))


def server_gone(facts: Facts) -> Finding:
    """Whether the session was lost, or the server was leaving."""
    if not facts.has_edge:
        return Finding(None, ITS_OWN)
    during = facts.during
    told = [status_of(request) for request in during if status_of(request) in GONE]
    words = [f'{why} {count}' for why, count in sorted(facts.connection.items())]
    words += [f'{told.count(status)} answers {status}' for status in sorted(set(told))]
    words += [
        f'the trace of {peer.node} breaks off at {clock(peer.end_s)}: it was killed'
        for peer in facts.of_role('server')
        if broke_off(facts, peer)
    ]
    return Finding(bool(words), ', '.join(words) or 'the connection was not lost')


def cage(facts: Facts) -> Finding:
    """Whether the cage changed more commands than before."""
    if not facts.rough.count:
        return Finding(None, 'no command of that time is in the traces')
    share, usual = (commands.changed / max(1, commands.count) for commands in both(facts))
    words = f'changed by the cage: {_changed(facts.calm)} before, {_changed(facts.rough)} during'
    for reason, _ in facts.rough.reasons.most_common(1):
        words += f' ({reason})'
    return Finding(share >= CHANGED_SHARE and share > 2 * usual, words)


def ticks_missed(facts: Facts) -> Finding:
    """Whether control steps were left out in the midst of playing."""
    if not facts.rough.count:
        return Finding(None, 'no command of that time is in the traces')
    words = f'control steps missed: {facts.calm.missed} before, {facts.rough.missed} during'
    if facts.rough.missed >= MISSED_MIN and not facts.is_edge_whole:
        return Finding(None, f'{words}; or lost by the trace of its edge, which is not whole')
    return Finding(facts.rough.missed >= MISSED_MIN, words)


def buffer_short(facts: Facts) -> Finding:
    """Whether answers always took longer than what is buffered when they are asked for."""
    whole = facts.figure(lambda request: request.round_trip_ms)
    buffer_s = number(facts.parameters, 'buffer_time_s')
    if not whole.is_known:
        return not_enough('round trip', whole)
    if buffer_s is None:
        return Finding(None, 'the header of its edge has no buffer_time_s')
    words = f'round trip {whole.words}; buffer_time_s is {buffer_s:g}'
    is_long = min(whole.before_p50, whole.during_p50) >= buffer_s * 1e3
    return Finding(is_long and not whole.grew, words)


def growth(facts: Facts, name: str, value: object) -> Finding:
    found = facts.figure(value)
    if not found.is_known:
        return not_enough(name, found)
    return Finding(found.grew, f'{name} {found.words}')


def not_enough(name: str, found: Figure) -> Finding:
    return Finding(None, f'too few requests tell of it: {name} {found.words}')


def queue_wait(facts: Facts) -> Figure:
    return facts.figure(lambda request: request.part('queue_wait_ms'))


def queue_teller(facts: Facts) -> Peer | None:
    """Return who tells of the queue waits of others: the server, else the router."""
    tellers = [p for p in facts.peers if p.pairs and p.waits.get(facts.client, ([], []))[1]]
    return min(tellers, key=lambda peer: peer.role != 'server', default=None)


def waited(each: Figure, usual: Figure) -> bool:
    """Tell whether a robot waited longer than it did; a new one, than all others did."""
    usual_ms = usual.before_p50
    return each.grew or (usual_ms is not None and grew(usual_ms, each.during_p50))


def broke_off(facts: Facts, peer: Peer) -> bool:
    """Tell whether a server's trace has no end and stops where requests get no answer."""
    if peer.is_ended or not peer.pairs or peer.end_s is None:
        return False
    lost = [request for request in facts.during if is_sent(request) and not request.servers]
    return any(peer.end_s <= request.end_s for request in lost)


def rate(facts: Facts, peer: Peer) -> str:
    """Return how many requests a second a server had, before and during."""
    onset_s = facts.onset_s
    lengths_s = onset_s - max(peer.begin_s, facts.begin_s - 60.0), facts.trouble_s[1] - onset_s
    before, during = (n / max(s, 1.0) for n, s in zip(peer.seen, lengths_s, strict=True))
    return f'{before:.1f} requests a second before, {during:.1f} during'


def covers(facts: Facts, peer: Peer) -> bool:
    """Tell whether a trace is whole, and begins before the trouble and ends after it."""
    is_known = peer.is_whole and peer.begin_s is not None
    return is_known and peer.begin_s <= facts.onset_s and facts.trouble_s[1] <= peer.end_s


def status_of(request: Request) -> str:
    """Return what was answered, as the edge has it; else as the server, then the router."""
    told = [request.edge] if request.edge and not request.is_lost else []
    told += [each.record for each in (*request.servers, *request.routers)]
    return text(told[0], 'status') if told else ''


def is_sent(request: Request) -> bool:
    """Tell whether it left the robot: one that was given up may not even have been sent."""
    return request.status == 'timed_out'


def answered_at_server(request: Request) -> bool:
    return any(text(told.record, 'status') == 'ok' for told in request.servers)


def between_router_and_server(request: Request) -> float | None:
    if request.router_ms is None or request.server_ms is None:
        return None
    return max(0.0, request.router_ms - request.server_ms)


def replica(request: Request) -> str:
    return next((text(told.record, 'server') for told in request.routers), '')


def both(facts: Facts) -> tuple[Commands, Commands]:
    return facts.rough, facts.calm


def _changed(commands: Commands) -> str:
    return f'{commands.changed} of {commands.count}'
