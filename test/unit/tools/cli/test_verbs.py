# SPDX-License-Identifier: Apache-2.0
"""Verbs are found by entry point: of this package and of others, also where one is broken."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from lerobot_serve.tools.cli import main as module
from lerobot_serve.tools.cli.installed_verbs import GROUP, installed_verbs
from lerobot_serve.tools.cli.main import main

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
