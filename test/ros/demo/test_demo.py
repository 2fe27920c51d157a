# SPDX-License-Identifier: Apache-2.0
"""The demo, as a newcomer runs it: what it claims is shown, and nothing is left running."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import leaks

from lerobot_serve.demo.phase_context import DemoSettings, PhaseContext
from lerobot_serve.demo.scoreboard import Scoreboard
from lerobot_serve.demo.screen import Screen
from lerobot_serve.entry_points import defer_signals
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes.node_processes import executable_path
from lerobot_serve.tools.processes.parent_death import end_with_parent

PHASES = ('serve', 'shadow', 'kill', 'canary', 'broken')
# four servers, a router, two robots with an arm and a controller each
PROCESSES = 9
LIMIT_S = 170


def test_every_act_shows_its_point_and_the_audit_holds(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    command = [str(executable_path('lerobot-serve')), 'demo', '--robots', '2']
    # the canary that takes long is a matter of how many episodes there are
    command += ['--phases', 'broken,kill', '--plan', '50:1,100']
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stdout + result.stderr
    folder = tmp_path / 'out' / 'demo'
    summary = json.loads((folder / 'summary.json').read_text())
    assert tuple(summary['phases']) == PHASES
    assert all(summary['phases'][phase]['shown'] for phase in PHASES)
    assert summary['ok']
    assert summary['audit']['violations'] == 0
    assert summary['audit']['without_end'] == 1
    assert summary['phases']['kill']['robots_stalled'] == 0
    assert summary['phases']['shadow']['divergence_rad'] > 0
    assert summary['phases']['broken']['why']
    assert summary['phases']['broken']['episodes_with_v3_a_second_later'] == 0
    assert summary['episodes']['v2']['successes'] >= 1
    codes = summary['exit_status']
    assert len(codes) == PROCESSES
    logs = {name: (folder / f'{name}.log').read_text() for name in codes if codes[name]}
    assert not logs, (codes, logs)
    assert (folder / 'report.html').read_text().count('<svg') == 5
    assert 'all robots move' in result.stdout


def test_a_child_that_dies_is_named_with_its_last_words(processes):
    board = Scoreboard(['robot_1'])
    screen = Screen(board, {}, Console(file=io.StringIO(), force_terminal=False))
    monitor = SimpleNamespace(board=board)
    folder = processes.folder
    stage = PhaseContext(processes, monitor, screen, DemoSettings(folder, folder, ('100',)))
    child = processes.start('robot', 'sim_robot', rate_hz='fast')
    assert child.wait(60) == 1
    with (folder / 'robot.log').open('a') as log:
        log.write('\n \n')
    with pytest.raises(UserError) as refused:
        stage.wait_for_s(1.0)
    assert str(refused.value).startswith('robot ended with status 1, last log line: error: rate_')
    assert str(refused.value).endswith(f'; see {folder}/robot.log')
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ('arguments', 'told'),
    [
        (['--phases', 'serve,fly'], "unknown phase 'fly'; known: serve, shadow, kill"),
        (['--robots', '0'], '--robots must be in [1, 20], got 0'),
        (['--seed', '-1'], '--seed must be at least 0, got -1'),
        (['--plan', '50,20,100'], '--plan'),
    ],
)
def test_a_wrong_word_is_told_before_anything_starts(tmp_path, arguments, told):
    command = [str(executable_path('lerobot-serve')), 'demo', *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / 'out').exists()


def test_sigterm_ends_the_demo_and_all_it_started(tmp_path, wait_until):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    command = [str(executable_path('lerobot-serve')), 'demo']
    with (tmp_path / 'log').open('w') as log:
        running = subprocess.Popen(end_with_parent(command), cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_until(lambda: len(leaks.children(running.pid)) >= 3, 'three processes')
        started = leaks.children(running.pid)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 130, (tmp_path / 'log').read_text()
        assert not [pid for pid in started if leaks.command(pid) != 'gone']
    finally:
        for pid in leaks.children(running.pid):
            os.kill(pid, signal.SIGKILL)
        running.kill()
        running.wait()
    assert 'Traceback' not in (tmp_path / 'log').read_text()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_new_process_is_noted(number):
    came, at = [], []
    before = signal.signal(number, lambda *_: at.append(len(came)))
    try:
        with defer_signals():
            signal.raise_signal(number)
            came.append('noted')
        assert at == [1]
        signal.raise_signal(number)
        assert at == [1, 1]
    finally:
        signal.signal(number, before)


def test_a_demo_that_cannot_write_says_so(tmp_path):
    (tmp_path / 'out').write_text('in the way')
    command = [str(executable_path('lerobot-serve')), 'demo']
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert 'out/demo' in result.stderr
    assert 'Traceback' not in result.stderr
