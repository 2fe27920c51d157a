# SPDX-License-Identifier: Apache-2.0
"""The verbs of `lerobot-serve --help`, by what they are for. Pure but for the terminal's width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import shutil
import textwrap

# the verbs of other packages, and those of this one that no topic names
OTHERS = 'further verbs'
TOPICS = {
    'start nodes': ('up', 'serve', 'edge', 'router', 'gateway', 'learner'),
    'see the fleet': ('robots', 'dashboard', 'rerun', 'route'),
    'steer the fleet': ('rollout', 'split', 'drain', 'restore', 'robot', 'outcome'),
    'records': ('record', 'dataset', 'stats', 'diagnose', 'audit', 'replay'),
    'policies': ('versions', 'gate', 'swap', 'loop'),
    'prepare and check': ('demo', 'plan', 'doctor', 'link', 'keys', 'docs'),
}
# argparse indents the lines of a group by 2 and keeps 2 columns free
COLUMN, LEAST_WIDTH, INDENT = 12, 40, 4


def listed_by_topic(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each topic with the lines of its verbs; `texts` has what each verb does."""
    named = {name for names in TOPICS.values() for name in names}
    others = {OTHERS: tuple(name for name in texts if name not in named)}
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns - INDENT)
    for topic, names in {**TOPICS, **others}.items():
        lines = [_line(name, texts[name], width) for name in names if name in texts]
        if lines:
            yield topic, '\n'.join(lines)


def _line(name: str, text: str, width: int) -> str:
    indent = ' ' * COLUMN
    wrapped = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
    if len(name) >= COLUMN - 1:
        return f'{name}\n{wrapped}'
    return name.ljust(COLUMN) + wrapped.lstrip()
