# SPDX-License-Identifier: Apache-2.0
"""The words of a history: what a record says happened, why, and who did it. Pure functions."""

from __future__ import annotations

import re

from lerobot_serve.trace.format.records import (
    CanaryRecord,
    CommandRecord,
    ParameterRecord,
    StateRecord,
    TraceRecord,
)

BY = '; by: '
BY_OPERATOR = re.compile(r'(^|; )by an operator: ')
BY_CANARY = 'the canary'
# overall health of a router
HEALTH = {
    'healthy': 'all slots serve',
    'slot_a_drained': 'slot a gets no new episodes',
    'slot_b_drained': 'slot b gets no new episodes',
    'unavailable': 'no slot gets episodes',
}
# the others have an event of the rollout, or a parameter, with the same name and reason
NOTE = 'note'
SHOWN_COMMANDS = ('drain', 'restore', 'probe', 'lift verdict', 'skip shadow', NOTE)
# parts of a robot and of a server whose states are decisions
SHOWN_STATES = {
    'router': ('slots',),
    'server': ('server',),
    'edge': ('cage',),
}


def is_decision(record: TraceRecord, role: str) -> bool:
    """Return whether a record belongs into the history of a fleet."""
    if role != 'router':
        part = record.component if isinstance(record, StateRecord) else ''
        return part in SHOWN_STATES.get(role, ())
    if isinstance(record, CommandRecord):
        return record.name in SHOWN_COMMANDS
    if isinstance(record, ParameterRecord):
        # the event of the canary has its share
        return not (record.name == 'split_percent' and record.by == BY_CANARY)
    return isinstance(record, CanaryRecord | StateRecord)


def decision_text(record: TraceRecord, role: str = 'router') -> tuple[str, str, str] | None:
    """Return what happened, why and by whom; None for a record that is not a decision."""
    if isinstance(record, CanaryRecord):
        return _canary(record)
    if isinstance(record, CommandRecord):
        what = f'{record.name} {record.slot}' if record.slot else record.name or 'command'
        by, why = _split_author(record.by or '')
        # a note is what an operator did to a robot or a shadow
        return (why, '', by) if record.name == NOTE else (what, why, by)
    if isinstance(record, StateRecord):
        return _state(record)
    if isinstance(record, ParameterRecord):
        by, why = _split_author(record.by or '')
        return f'{record.name}: {record.old} -> {record.new}', why, by
    return None


def _canary(record: CanaryRecord) -> tuple[str, str, str]:
    share = record.share_percent
    shown = '' if share is None else f', {share:g} % to slot b'
    shown += f' ({record.policy})' if record.policy else ''
    why, by = record.reason or '', ''
    if BY in why:
        why, _, author = why.rpartition(BY)
        by, reason = _split_author(author)
        why = f'{why}: {reason}' if reason else why
    elif match := BY_OPERATOR.search(why):
        by, reason = _split_author(why[match.end() :])
        why = f'{why[: match.end(1)]}{reason}'
    return f'rollout {(record.event or "event").replace("_", " ")}{shown}', why, by


def _split_author(author: str) -> tuple[str, str]:
    """Return who and why of `kim@lab: reason`; what has no such name is who."""
    who, separator, why = author.partition(': ')
    return (who, why) if separator and ' ' not in who else (author, '')


def _state(record: StateRecord) -> tuple[str, str, str]:
    before, after = record.before or 'start', record.after or 'end'
    if record.component == 'slots':
        return HEALTH.get(after, after), record.reason or '', ''
    return f'{record.component}: {before} -> {after}', record.reason or '', ''
