# SPDX-License-Identifier: Apache-2.0
"""
Generates the comments of a parameter file: above each value the description of its parameter, its
unit, the allowed values and whether it is live. Plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import re
import textwrap

from lerobot_serve.parameters import parameter_specs, ParameterSpec

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
