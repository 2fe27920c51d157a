# SPDX-License-Identifier: Apache-2.0
"""The matrix of `.ci/matrix`: which runs there are, and what becomes of their results."""

from __future__ import annotations

from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest
from support.paths import REPOSITORY

CI = REPOSITORY / '.ci'
NAMES = [
    *('jazzy-py3.11', 'jazzy-py3.12', 'kilted-py3.11', 'kilted-py3.12'),
    *('jazzy-py3.11-torch-none', 'kilted-py3.11-torch-none'),
]


@pytest.fixture
def matrix(monkeypatch):
    """The module, which is in no package."""
    monkeypatch.syspath_prepend(str(CI))
    import matrix

    yield matrix
    del sys.modules['matrix']


@pytest.fixture
def results(matrix):
    passing, failing, missing = matrix.all_runs()[:3]
    return [
        matrix.Result(passing, matrix.PASSED, '3120 passed, 4 skipped', 480.0),
        matrix.Result(failing, matrix.FAILED, '1 failed, 3119 passed', 61.0),
        matrix.Result(missing, matrix.NOT_RUN, 'python3.11 is not on the PATH'),
    ]


def test_there_are_these_runs(matrix):
    assert [run.name for run in matrix.all_runs()] == NAMES


def test_each_run_has_the_folder_that_the_workspace_makes_for_it(matrix, monkeypatch):
    import workspace

    monkeypatch.setattr(workspace, 'supported_python', lambda: sys.executable)
    for run in matrix.all_runs():
        monkeypatch.setattr(workspace, 'run', lambda command, run=run: run.python)
        prepared = workspace.Workspace(sourced='', distro=run.distro, torch=run.torch)
        assert prepared.folder.name == run.name
    for name in ('machine', 'pins', 'workspace'):
        del sys.modules[name]


def test_named_runs_come_in_the_order_of_the_matrix(matrix):
    named = matrix.chosen([NAMES[4], NAMES[0]])
    assert [run.name for run in named] == [NAMES[0], NAMES[4]]


def test_an_unknown_run_names_the_nearest_one(matrix):
    with pytest.raises(ValueError, match=r'jazzy-py3\.13 is not a run; did you mean jazzy-py3\.1'):
        matrix.chosen(['jazzy-py3.13'])


def test_list_prints_the_runs_and_starts_none(matrix, capsys):
    assert matrix.main(['--list'], carry_out=None) == 0
    assert capsys.readouterr().out.split() == NAMES


def test_a_wrong_command_line_has_its_own_status():
    shown = subprocess.run([CI / 'matrix', 'humble'], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2
    assert 'humble is not a run' in shown.stderr


def test_a_run_is_what_a_user_types(matrix):
    run = matrix.Run('kilted', '3.12', 'none')
    assert run.command('/usr/bin/python3.12', 'test') == [
        *('make', 'test', 'PYTHON=/usr/bin/python3.12', 'ROS=kilted', 'TORCH=none'),
    ]


def test_a_sourced_ros_does_not_reach_a_run(matrix):
    sourced = {'ROS_DISTRO': 'jazzy', 'AMENT_PREFIX_PATH': '/opt/ros/jazzy', 'HOME': '/root'}
    assert matrix.without_ros(sourced) == {'HOME': '/root'}


@pytest.mark.parametrize(
    ('log', 'counted'),
    [
        ('...\n==== 12 passed, 1 skipped in 3.40s ====\n', '12 passed, 1 skipped'),
        (
            '== 1 failed, 2 passed, 3 warnings in 481.20s (0:08:01) ==',
            '1 failed, 2 passed, 3 warnings',
        ),
        ('= 1 passed in 1.0s =\n= 2 passed in 1.0s =\n', '2 passed'),
        ('make: *** [Makefile:41: lint] Error 1\n', ''),
    ],
)
def test_counts_are_the_last_summary_of_pytest(matrix, log, counted):
    assert matrix.counts(log) == counted


def test_the_table_has_a_row_for_each_run(matrix, results):
    assert matrix.table(results).splitlines() == [
        'run            result   minutes  tests',
        'jazzy-py3.11   passed   8.0      3120 passed, 4 skipped',
        'jazzy-py3.12   failed   1.0      1 failed, 3119 passed',
        'kilted-py3.11  not run  0.0      python3.11 is not on the PATH',
    ]


def test_only_a_matrix_that_passed_as_a_whole_has_passed(matrix, results):
    assert matrix.exit_status(results[:1]) == 0
    assert matrix.exit_status(results[:2]) == 1
    assert matrix.exit_status([results[0], results[2]]) == 1


def test_every_run_is_carried_out_also_after_a_failure(matrix, capsys):
    asked = []

    def failing(run, target, limit_s):
        asked.append((run.name, target, limit_s))
        return matrix.Result(run, matrix.FAILED)

    assert matrix.main(['--target', 'unit', '--limit-min', '2', *NAMES[:2]], failing) == 1
    assert asked == [(NAMES[0], 'unit', 120.0), (NAMES[1], 'unit', 120.0)]
    assert capsys.readouterr().out.count('failed') == 2


def test_a_missing_python_is_no_crash(matrix, monkeypatch):
    monkeypatch.setattr(matrix, 'interpreter', lambda version: '')
    result = matrix.carry_out(matrix.Run('jazzy', '3.12', 'cpu'), 'test', 1.0)
    assert (result.status, result.text) == ('not run', 'python3.12 is not on the PATH')


def test_a_python_that_is_there_in_name_only_is_missing(matrix, monkeypatch, tmp_path):
    shim = tmp_path / 'python3.12'
    shim.write_text('#!/bin/sh\nexit 127\n')
    shim.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    assert matrix.interpreter('3.12') == ''
    assert matrix.interpreter('3.11') == ''


def test_the_log_is_kept_and_counted(matrix, monkeypatch, tmp_path):
    monkeypatch.setattr(matrix, 'LOGS', tmp_path / 'logs')
    monkeypatch.setattr(matrix.Run, 'command', lambda *_: ['echo', '== 7 passed in 0.10s =='])
    monkeypatch.setattr(matrix, 'interpreter', lambda version: sys.executable)
    run = matrix.Run('jazzy', '3.11', 'cpu')
    result = matrix.carry_out(run, 'test', 60.0)
    assert (result.status, result.text) == ('passed', '7 passed')
    assert '7 passed' in (tmp_path / 'logs' / 'jazzy-py3.11.log').read_text()


def test_at_the_limit_a_run_ends_with_its_children(matrix, tmp_path):
    children = tmp_path / 'child'
    process = subprocess.Popen(
        ['sh', '-c', f'sleep 600 & echo $! > {children}; wait'], start_new_session=True
    )
    while not (children.exists() and children.read_text().strip()):
        time.sleep(0.01)
    assert matrix.wait(process, 0.0) == 'timed out'
    assert process.returncode == -signal.SIGKILL
    wait_until_gone(int(children.read_text()))


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended, whether or not anybody has collected its status."""
    stat = Path(f'/proc/{pid}/stat')
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if stat.read_text().rpartition(')')[2].split()[0] == 'Z':
                return
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f'process {pid} runs on')
