# SPDX-License-Identifier: Apache-2.0
"""Events of the timeline other than requests. Pure functions; any thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from lerobot_serve.tools.traces.fields import integer, number, policy_names, Record, text


class TimelineEvent(NamedTuple):
    """`time_s` is by the clock of the robot if its offset is known; `node` recorded it."""

    time_s: float
    node: str
    text: str


def describe_record(record: Record) -> str:
    """Return a record as text, empty when it is no event."""
    describe = DESCRIPTIONS.get(record['kind'])
    return describe(record) if describe else ''


def _state(record: Record) -> str:
    component, before, after = (text(record, name) for name in ('component', 'from', 'to'))
    change = f'{component}: {before or "?"} -> {after or "?"}'
    why = text(record, 'reason')
    return _why(change, '' if why == text(record, 'to') else why)


def _parameter(record: Record) -> str:
    name = text(record, 'name')
    return f'parameter {name}: {_short(record.get("old"))} -> {_short(record.get("new"))}'


def _decision(record: Record) -> str:
    verb = 'moved to' if record.get('moved') is True else 'placed in'
    server = text(record, 'server')
    words = f'episode {text(record, "episode_id") or "without name"} {verb} slot '
    words += text(record, 'slot') or '?'
    return _why(words + (f' at {server}' if server else ''), text(record, 'reason'))


def _policies(record: Record) -> str:
    return f'policies in use: {", ".join(policy_names(record)) or "none"}'


def _drop(record: Record) -> str:
    of = text(record, 'item')
    count = integer(record, 'count')
    words = f'dropped {1 if count is None else count}: {text(record, "reason") or "?"}'
    return f'{words} ({of})' if of else words


def _incident(record: Record) -> str:
    if text(record, 'name') == 'stalled':
        # the change of the rung shows it
        return ''
    return _why(f'incident {text(record, "name") or "?"}', text(record, 'reason'))


def _outcome(record: Record) -> str:
    words = f'episode {text(record, "episode_id")} ended: {text(record, "outcome") or "?"}'
    return _why(words, text(record, 'reason'))


def _canary(record: Record) -> str:
    share = number(record, 'share_percent')
    words = f'canary {text(record, "event") or "?"}'
    return _why(words + (f', {share:g} %' if share is not None else ''), text(record, 'reason'))


def _damaged(record: Record) -> str:
    return f'damaged line in this trace: {text(record, "reason") or "?"}'


def _why(words: str, why: str) -> str:
    return f'{words} ({why})' if why else words


def _short(value: Any) -> str:
    written = str(value)
    return written if len(written) <= 80 else f'{written[:77]}...'


DESCRIPTIONS = {
    'state': _state,
    'parameter': _parameter,
    'policies': _policies,
    'placement': _decision,
    'drop': _drop,
    'incident': _incident,
    'outcome': _outcome,
    'canary': _canary,
    'damaged': _damaged,
}
