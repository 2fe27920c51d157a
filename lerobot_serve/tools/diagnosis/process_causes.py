# SPDX-License-Identifier: Apache-2.0
"""
Causes at the nodes themselves: a process stood still, ended or closed; the state of the robot, the
cage. Pure functions.
"""

from __future__ import annotations

from lerobot_serve.tools.diagnosis.finding import CauseFinding, length_s, union
from lerobot_serve.tools.diagnosis.link_causes import NO_EDGE_TRACE
from lerobot_serve.tools.diagnosis.request_spans import (
    influence,
    lost_requests,
    reply_status,
    with_aftermath,
)
from lerobot_serve.tools.diagnosis.timeline import DRAINING, NO_SESSION
from lerobot_serve.tools.diagnosis.window_facts import PeerFacts, WindowFacts
from lerobot_serve.tools.output.text import format_local
from lerobot_serve.tools.traces.fields import number

SESSION_LOST = (NO_SESSION, DRAINING)
# thresholds: share of changed commands; missed steps
CHANGED_SHARE, MISSED_MIN = 0.05, 2


def stood_still(facts: WindowFacts, role: str) -> CauseFinding:
    """Evaluate whether the process of a node did not run, by its own trace."""
    peers = [peer for peer in facts.of_role(role) if peer.joined_requests]
    if not peers:
        return CauseFinding(None, f'no {role} has a trace of this robot')
    still = {peer.node: facts.of_window(peer.still_spans) for peer in peers}
    spans = [span for found in still.values() for span in found]
    words = [
        f'{node} did not run for {length_s(union(found)):.2f} s'
        for node, found in still.items()
        if found
    ]
    text = '; '.join(words) or f'no standstill is recorded of {", ".join(still)}'
    return CauseFinding(bool(spans), text, with_aftermath(facts, spans))


def session_lost(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the session was lost, or the server was draining or ended."""
    if not facts.has_edge:
        return CauseFinding(None, NO_EDGE_TRACE)
    during = facts.during
    statuses = [s for s in map(reply_status, during) if s in SESSION_LOST]
    words = [f'{why} {count}' for why, count in sorted(facts.connection_losses.items())]
    words += [f'{statuses.count(status)} replies {status}' for status in sorted(set(statuses))]
    spans = list(facts.lost_spans)
    for peer in facts.peers:
        if (end_s := abrupt_end_s(facts, peer)) is not None:
            words.append(
                f'the trace of {peer.node} ends at {format_local(end_s)} without a footer: '
                'killed, cut off, or it stands still'
            )
            spans.append((end_s, facts.end_s))
    spans += influence(facts, [r for r in during if reply_status(r) in SESSION_LOST])
    return CauseFinding(
        bool(words), ', '.join(words) or 'the connection was not lost', tuple(spans)
    )


def abrupt_end_s(facts: WindowFacts, peer: PeerFacts) -> float | None:
    """Return the end of a peer's trace that has no footer and ends before lost requests."""
    if peer.is_ended or not peer.joined_requests or peer.span_s is None:
        return None
    _, end_s = peer.span_s
    lost = [request for request in lost_requests(facts) if not request.server_records]
    return end_s if any(end_s <= request.end_s for request in lost) else None


def edge_starved(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the edge missed control steps, by the times of its commands."""
    if not facts.commands_during.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    if number(facts.parameters, 'fps') is None:
        return CauseFinding(None, 'the header of its edge has no fps')
    before, during = facts.commands_before.missed, facts.commands_during.missed
    words = f'control steps missed: {before} before, {during} during'
    if during >= MISSED_MIN and not facts.is_edge_complete:
        return CauseFinding(
            None, f'{words}; or lost by the trace of its edge, which is incomplete'
        )
    spans = facts.of_window(facts.starved_spans)
    if spans:
        words += f'; at most {max(end_s - begin_s for begin_s, end_s in spans):.2f} s at a time'
    return CauseFinding(bool(spans), words, spans)


def stale_state(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether commands were held because the state of the robot was not known."""
    if not facts.commands_during.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    held, spans = facts.commands_during.held, facts.of_window(facts.stale_spans)
    words = f'{held.total()} of {facts.commands_during.count} commands during held by the cage'
    if reasons := [why for why, _ in held.most_common(1)] + facts.stale_reasons[:1]:
        words += f' ({"; ".join(reasons)})'
    return CauseFinding(bool(spans), words, spans)


def cage_intervention(facts: WindowFacts) -> CauseFinding:
    """Evaluate whether the cage clamped more actions to the limits than before."""
    if not facts.commands_during.count:
        return CauseFinding(None, 'no command of that time is in the traces')
    during, before = facts.commands_during, facts.commands_before
    share, usual = (each.clamped / max(1, each.played) for each in (during, before))
    words = (
        f'clamped to a limit: {before.clamped} of {before.played} actions before, '
        f'{during.clamped} of {during.played} during'
    )
    for reason, _ in during.reasons.most_common(1):
        words += f' ({reason})'
    return CauseFinding(share >= CHANGED_SHARE and share > 2 * usual, words)
