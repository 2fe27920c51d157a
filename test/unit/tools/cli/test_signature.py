# SPDX-License-Identifier: Apache-2.0
"""The command line of a verb from the signature of its function."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Annotated, Literal

import pytest

from lerobot_serve.tools.cli.signature import Argument, number, steps_of, verb_of
from lerobot_serve.tools.output.report import Report


@dataclass(frozen=True)
class Group:
    wait_s: Annotated[float, Argument('time [s]', 'S', number('s', 10.0))] = 2.0
    yes: Annotated[bool, Argument('do not ask')] = False


def verb(
    name: Annotated[str, Argument('a name', 'NAME')],
    how: Annotated[Literal['fast', 'slow'], Argument('how')] = 'fast',
    *,
    count: Annotated[int, Argument('how many [%]')],
    path: Annotated[Path | None, Argument('a file', 'FILE', either='one')] = None,
    text: Annotated[str, Argument('a text', flags=('--text', '--words'), either='one')] = '',
    each: Annotated[Sequence[str], Argument('given several times', flags=('--one',))] = (),
    some: Annotated[Sequence[int], Argument('several values', nargs='+')] = (),
    group: Group,
) -> Report:
    """Show what it got. Raises nothing."""
    values = {**locals()}
    group_values = {'wait_s': group.wait_s, 'yes': group.yes}
    data = {**values, 'path': str(path) if path else None, 'group': group_values}
    return Report(data, [f'{name} is {how}'], status=count)


def run(function, *words: str) -> int:
    add_arguments, main = verb_of(function)
    parser = argparse.ArgumentParser()
    parser.set_defaults(verb='verb')
    add_arguments(parser)
    return main(parser.parse_args(words))


DEFAULTS = {
    'name': 'a',
    'how': 'fast',
    'count': 0,
    'path': None,
    'text': '',
    'each': [],
    'some': [],
    'group': {'wait_s': 2.0, 'yes': False},
}


@pytest.mark.parametrize(
    ('words', 'changed'),
    [
        ('a --count 0', {}),
        ('a slow --count=3', {'how': 'slow', 'count': 3}),
        ('a --count 0 --path x/y', {'path': 'x/y'}),
        ('a --count 0 --words hi', {'text': 'hi'}),
        ('a --count 0 --one b --one c', {'each': ['b', 'c']}),
        ('a --count 0 --some 1 2 --some 3', {'some': [1, 2, 3]}),
        ('a --count 0 --yes --wait-s 0.5', {'group': {'wait_s': 0.5, 'yes': True}}),
    ],
)
def test_values_have_the_types_of_the_signature(capsys, words, changed):
    status = run(verb, *words.split(), '--json')
    assert json.loads(capsys.readouterr().out) == DEFAULTS | changed
    assert status == changed.get('count', 0)


@pytest.mark.parametrize(
    ('words', 'text'),
    [
        ('a', 'the following arguments are required: --count'),
        ('a quick --count 1', "invalid choice: 'quick'"),
        ('a --count many', "invalid int value: 'many'"),
        ('a --count 1 --wait-s 0', 'must be in (0, 10] s, got 0'),
        ('a --count 1 --path x --text y', 'not allowed with argument --path'),
    ],
)
def test_a_wrong_command_line_is_refused(capsys, words, text):
    with pytest.raises(SystemExit) as ended:
        run(verb, *words.split())
    assert ended.value.code == 2 and text in capsys.readouterr().err


def test_people_get_the_text_and_the_help_names_defaults(capsys):
    assert run(verb, 'a', '--count', '4') == 4
    assert capsys.readouterr().out == 'a is fast\n'
    with pytest.raises(SystemExit):
        run(verb, '--help')
    shown = ' '.join(capsys.readouterr().out.split())
    for words in ('how (fast)', 'time [s] (2)', 'how many [%]', '--json print a JSON object'):
        assert words in shown


def test_steps_are_named_by_their_docstrings(capsys):
    def status() -> int:
        """Return 100 % of it. Raises nothing."""
        return 7

    add_arguments, main = steps_of({'status': status})
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(['status'])
    assert main(options) == 7 and not hasattr(options, 'json')
    with pytest.raises(SystemExit):
        parser.parse_args(['status', '--help'])
    assert 'Return 100 % of it.' in capsys.readouterr().out
