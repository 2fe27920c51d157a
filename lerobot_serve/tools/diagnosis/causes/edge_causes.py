# SPDX-License-Identifier: Apache-2.0
"""Causes at the edge: its own process, the state of the robot, the cage. Pure functions."""

from __future__ import annotations

from lerobot_serve.tools.diagnosis.causes.finding import CauseFinding
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts
from lerobot_serve.tools.traces.fields import number

# thresholds: share of changed commands; missed steps
CHANGED_SHARE, MISSED_MIN = 0.05, 2


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
