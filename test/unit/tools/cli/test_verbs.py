# SPDX-License-Identifier: Apache-2.0
"""Verbs: found by entry point, of this package and of others; their command lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import subprocess
import sys
from typing import Annotated, Literal

import pytest
from support.paths import REPOSITORY

from lerobot_serve.tools.cli import main as module
from lerobot_serve.tools.cli.installed_verbs import GROUP, installed_verbs
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.signature import Argument, number, steps_of, verb_of
from lerobot_serve.tools.output.report import Report

GOOD = """
HELP = 'fly 100 % of the way'
EXAMPLE = 'example: lerobot-serve fly'
def add_arguments(parser):
    parser.add_argument('--far', action='store_true')
def main(options):
    print('far' if options.far else 'near')
    return 7
"""
HEAVY = {'torch', 'rclpy', 'numpy', 'rich', 'yaml', 'mcap'}


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """Return a function that installs a verb of another package."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, code: str, *, value: str = '') -> None:
        (tmp_path / f'other_{name}.py').write_text(code)
        info = tmp_path / f'other_{name}-1.0.dist-info'
        info.mkdir()
        entry = value or f'other_{name}'
        (info / 'entry_points.txt').write_text(
            f'[console_scripts]\nx = y:z\n\n[{GROUP}]\n{name} = {entry}\n\n[more]\na = b\n'
        )

    return install


def helped(capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(['--help'])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_file_of_a_verb_is_an_entry_point():
    folder = Path(module.__file__).parent / 'verbs'
    files = {file.stem for file in folder.glob('[!_]*.py')}
    own = {name for name, verb in installed_verbs().items() if verb.package == 'lerobot_serve'}
    assert own == files


def test_a_verb_of_another_package_is_listed_and_runs(other_package, capsys):
    other_package('fly', GOOD)
    assert 'fly 100 % of the way' in helped(capsys)
    assert main(['fly', '--far']) == 7
    assert capsys.readouterr().out == 'far\n'


def test_a_verb_may_be_an_object_in_a_module(other_package, capsys):
    other_package(
        'glide',
        f'class Glide:{GOOD}Glide.main = staticmethod(Glide.main)'.replace('\n', '\n    ').replace(
            '    Glide', 'Glide'
        ),
        value='other_glide:Glide',
    )
    assert 'fly 100 % of the way' in helped(capsys)


@pytest.mark.parametrize(
    ('code', 'reason'),
    [
        ('import no_such_package_here', "No module named 'no_such_package_here'"),
        ('raise RuntimeError("one\\ntwo 100 %")', 'RuntimeError: one two 100 %'),
        ('def (', 'SyntaxError'),
        (GOOD.replace('def main', 'def began'), 'has no main'),
    ],
)
def test_a_broken_verb_is_one_line(other_package, capsys, code, reason):
    other_package('fall', code)
    listed = helped(capsys)
    assert 'broken' in listed and 'check traces and bags' in listed
    assert main(['fall']) == 1
    error = capsys.readouterr().err
    assert reason in error and error.count('\n') == 1
    assert "verb 'fall' of package other_fall is broken" in error


def test_the_own_verb_wins(other_package):
    other_package('audit', GOOD)
    assert installed_verbs()['audit'].package == 'lerobot_serve'


def test_a_broken_verb_does_not_stop_the_others(other_package, capsys):
    other_package('fall', 'raise ValueError')
    assert main(['route', '--split', '80', 'ep_42']) == 0


def test_help_imports_nothing_heavy():
    code = (
        'import sys\n'
        'from lerobot_serve.tools.cli.main import main\n'
        'try: main(["--help"])\n'
        'except SystemExit: pass\n'
        'print(*sys.modules, file=sys.stderr)\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


def test_a_value_that_begins_with_a_dash_has_a_hint(capsys):
    with pytest.raises(SystemExit) as raised:
        main(['edge', '--task', '-x'])
    assert raised.value.code == 2
    assert '--task=-VALUE' in capsys.readouterr().err


@pytest.mark.parametrize(
    'words',
    [
        ['split', '140'],
        ['route', 'ep_1', '--split', '140'],
        ['rollout', 'start', '--plan', '50,25'],
        ['rollout', 'shadow', 'v2'],
        ['serve', '--max-sessions', '0'],
        ['edge', '--codec', 'bmp'],
        ['rollout', 'status', '--timeout-s', '0'],
    ],
    ids=lambda words: ' '.join(words),
)
def test_a_value_out_of_its_bounds_is_a_wrong_command_line(words, capsys):
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert 'Traceback' not in capsys.readouterr().err


@pytest.mark.parametrize(
    ('words', 'near'),
    [
        (['rollot', 'status'], 'rollout'),
        (['Robots'], 'robots'),
        (['rollout', 'abrot'], 'abort'),
        (['robot', 'robot_1', 'pasue'], 'pause'),
        (['robot', 'robot_1', 'reset_cage'], 'reset-cage'),
        (['outcome', 'ep_1', 'sucess'], 'success'),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_right_one(words, near, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f'did you mean {near}?' in capsys.readouterr().err


def test_a_word_that_is_like_none_lists_all(capsys):
    with pytest.raises(SystemExit):
        main(['xyzzy'])
    error = capsys.readouterr().err
    assert 'did you mean' not in error and 'rollout' in error


def test_the_shell_of_make_completes_verbs(tmp_path):
    script = f"""
        HOME={tmp_path}
        . {REPOSITORY}/.ci/completion.bash
        complete -p lerobot-serve
    """
    done = subprocess.run(['bash', '-c', script], capture_output=True, text=True)
    assert 'lerobot-serve' in done.stdout and done.returncode == 0, done.stderr
    make = (REPOSITORY / 'Makefile').read_text()
    assert (
        '.ci/shell.sh' in make and 'completion.bash' in (REPOSITORY / '.ci/shell.sh').read_text()
    )


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
