# SPDX-License-Identifier: Apache-2.0
"""
What is generated inside files that people write: the state diagrams of the documentation, from the
transition tables of the code, and the comments of a parameter file. Any thread.

A page marks the place: `<!-- diagram: NAME -->` on the line above a Mermaid block, which
`with_diagrams` replaces. Blocks without that line are written by hand. Above each value of a
parameter file stand its description, unit, allowed values and whether it is live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
import re
import textwrap
from typing import TypeVar

from lerobot_serve.edge.session import connection
from lerobot_serve.learner.rounds import states as learner
from lerobot_serve.parameters import parameter_specs, ParameterSpec
from lerobot_serve.router.canary import states as canary

MARKED_BLOCK = re.compile(r'(?ms)^<!-- diagram: (\w+) -->\n```mermaid\n.*?^```$')

State = TypeVar('State', bound=Enum)
Trigger = TypeVar('Trigger', bound=Enum)


def state_diagram(
    start: State,
    table: Mapping[tuple[State, Trigger], State],
    hidden: frozenset[Trigger] = frozenset(),
) -> str:
    """Return a transition table as Mermaid, without the events in `hidden`."""
    edges: dict[tuple[State, State], list[str]] = {}
    for (state, event), target in table.items():
        if event not in hidden:
            edges.setdefault((state, target), []).append(event.name)
    lines = ['stateDiagram-v2', f'    [*] --> {start.name}']
    lines += [
        f'    {before.name} --> {after.name}: {", ".join(events)}'
        for (before, after), events in edges.items()
    ]
    return '\n'.join(lines)


def connection_diagram() -> str:
    """Return the connection states of an edge controller."""
    return state_diagram(connection.ConnectionState.CONNECTING, connection.TRANSITIONS)


def canary_diagram() -> str:
    """Return the canary states, without STOP and RESTART, which any state but OFF allows."""
    everywhere = frozenset({canary.CanaryTrigger.STOP, canary.CanaryTrigger.RESTART})
    return state_diagram(canary.CanaryPhase.OFF, canary.TRANSITIONS, everywhere)


def learner_diagram() -> str:
    """Return the states of a learner, without events that change no state."""
    changing = {key: after for key, after in learner.TRANSITIONS.items() if key[0] is not after}
    return state_diagram(learner.Phase.WAITING, changing)


DIAGRAMS: dict[str, Callable[[], str]] = {
    'connection': connection_diagram,
    'canary': canary_diagram,
    'learner': learner_diagram,
}


def pages_with_diagrams(docs: Path) -> dict[Path, str]:
    """Return the pages of a folder with generated diagrams, with the diagrams updated."""
    pages = {path: path.read_text() for path in sorted(docs.glob('*.md'))}
    return {path: with_diagrams(page) for path, page in pages.items() if MARKED_BLOCK.search(page)}


def with_diagrams(page: str) -> str:
    """Return a page with its marked blocks regenerated. Raises KeyError for an unknown diagram."""
    return MARKED_BLOCK.sub(lambda match: marked_block(match[1]), page)


def marked_block(name: str) -> str:
    """Return a diagram with its mark, as in a page."""
    return f'<!-- diagram: {name} -->\n```mermaid\n{DIAGRAMS[name]()}\n```'


LINE_LENGTH = 100
NODE = re.compile(r'^  (\w+):$')
GROUP = re.compile(r'^      (\w+):$')
VALUE = re.compile(r'^( {6,8})(\w+):')


def comment(spec: ParameterSpec) -> str:
    """Return the comment of one parameter, on one line."""
    unit = f' [{spec.unit}]' if spec.unit else ''
    allowed = f'; {spec.allowed}' if spec.low is not None or spec.high is not None else ''
    return f'{spec.text}{unit}{allowed}{"; live" if spec.live else ""}'


def with_comments(content: str, nodes: Mapping[str, type]) -> str:
    """Return a parameter file with updated comments."""
    return '\n'.join(_lines(content.split('\n'), nodes))


def _lines(lines: list[str], nodes: Mapping[str, type]) -> Iterator[str]:
    """Yield the lines; a comment waits until the value below it is known."""
    specs: dict[str, ParameterSpec] = {}
    group = ''
    waiting: list[str] = []
    for line in lines:
        if line.lstrip().startswith('#'):
            waiting.append(line)
            continue
        if node := NODE.match(line):
            specs = {spec.name: spec for spec in parameter_specs(nodes[node[1]])}
        elif match := GROUP.match(line):
            group = f'{match[1]}.'
        elif match := VALUE.match(line):
            group = group if len(match[1]) > 6 else ''
            if spec := specs.get(group + match[2]):
                waiting = _wrapped(comment(spec), match[1])
        yield from waiting
        waiting = []
        yield line
    yield from waiting


def _wrapped(text: str, indent: str) -> list[str]:
    prefix = f'{indent}# '
    return textwrap.wrap(
        text,
        LINE_LENGTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )
