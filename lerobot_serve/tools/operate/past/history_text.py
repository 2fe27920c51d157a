# SPDX-License-Identifier: Apache-2.0
"""A history as text for a terminal, in local time. Reads the time zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lerobot_serve.tools.operate.past.history import Decision, History, outcome_lines
from lerobot_serve.tools.output.local_time import format_local
from lerobot_serve.tools.output.text import without_controls


def as_text(history: History) -> str:
    """Return the decisions, then the counts of policies, robots and servers."""
    lines = [decision_line(each) for each in history.decisions] or ['no decision']
    for title, counted in (
        ('episodes and outcomes of each policy:', outcome_lines(history)),
        ('robots that halted or stalled:', _counts(history.robots)),
        ('servers with incidents:', _counts(history.servers)),
    ):
        if counted:
            lines += ['', title, *(f'  {line}' for line in counted)]
    return '\n'.join(map(without_controls, lines))


def decision_line(each: Decision) -> str:
    """Return one decision with its local time, reason and author."""
    at = format_local(each.time_s, day=True, to='seconds')
    why = f': {each.why}' if each.why else ''
    by = f' [by {each.by}]' if each.by else ''
    return f'{at}  {each.router}  {each.what}{why}{by}'


def _counts(counts: Mapping[str, Counter[str]]) -> list[str]:
    return [
        f'{name}: ' + ', '.join(f'{what} {count}x' for what, count in found.most_common())
        for name, found in sorted(counts.items())
    ]
