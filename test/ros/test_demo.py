"""The demo, as a newcomer runs it: a robot that moves, a summary, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from types import SimpleNamespace

import leaks
import pytest

from lerobot_serve.cli import demo
from lerobot_serve.cli.processes import executable_path
from lerobot_serve.ros.runtime import UserError
from lerobot_serve.start import signals_held

SUMMARY = {
    'seconds': 20.0,
    'policy': 'reach@0123456789abcdef',
    'episodes': 9,
    'successes': 8,
    'edge': {
        'ticks': 640,
        'ticks_missed': 2,
        'actions_executed': 620,
        'requests_sent': 41,
        'chunks_accepted': 40,
        'stalls': 3,
        'cage_trips': 1,
    },
    'action_age_ms': {'count': 620, 'p50': 260.2, 'p99': 520.4, 'max': 533.1},
    'round_trip_ms': {'count': 40, 'p50': 4.71, 'p99': 7.32, 'max': 9.0},
    'inference_ms_p50': 2.412,
    'drops': {},
    'edge_has_torch': False,
}
DESCRIBED = """\
In 20 s:
  episodes            9 ended, 8 reached the target
  policy              reach@0123456789abcdef
  actions             620 executed, 1 changed by the safety cage
  action age          p50 260 ms, p99 520 ms, oldest 533 ms
  chunks              40 for 41 requests
  round trip          p50 4.7 ms, p99 7.3 ms, of it inference p50 2.4 ms
  stalls              3
  control ticks       640 and 2 missed
  dropped             none
  torch on the robot  no
All figures: out/demo/summary.json"""


def test_the_demo_ends_by_itself_with_a_summary(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    command = [str(executable_path('lerobot-serve')), 'demo', '--seconds', '10']
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / 'out' / 'demo' / 'summary.json').read_text())
    assert summary['episodes'] >= 1
    assert summary['successes'] >= 1
    assert summary['edge']['actions_executed'] > 30
    assert summary['edge']['chunks_accepted'] > 1
    assert 0 < summary['action_age_ms']['max'] <= 3000
    assert summary['edge_has_torch'] is False
    assert set(summary['exit_status'].values()) == {0}
    assert 'reached the target' in result.stdout


def test_the_summary_is_a_table():
    assert demo.describe(SUMMARY) == DESCRIBED
    other = demo.describe({**SUMMARY, 'drops': {'stale': 2, 'late': 1}, 'edge_has_torch': True})
    assert '  dropped             stale 2, late 1\n' in other
    assert '  torch on the robot  YES\n' in other


def test_a_child_that_dies_is_named_with_its_last_words(processes):
    watch = SimpleNamespace(news=threading.Event())
    child = processes.start('robot', 'sim_robot', rate_hz='fast')
    assert child.wait(60) == 1
    with (processes.folder / 'robot.log').open('a') as log:
        log.write('\n \n')
    with pytest.raises(UserError) as refused:
        demo.wait(processes, watch, 1.0)
    assert str(refused.value).startswith('robot ended with status 1, its last words: error: rate_')
    assert str(refused.value).endswith('; see out/demo/robot.log')
    assert len(str(refused.value).splitlines()) == 1


def test_sigterm_ends_the_demo_and_all_it_started(tmp_path, wait_until):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    command = [str(executable_path('lerobot-serve')), 'demo', '--seconds', '60']
    with (tmp_path / 'log').open('w') as log:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
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
        with signals_held():
            signal.raise_signal(number)
            came.append('noted')
        assert at == [1]
        signal.raise_signal(number)
        assert at == [1, 1]
    finally:
        signal.signal(number, before)


def test_a_demo_that_cannot_write_says_so(tmp_path):
    (tmp_path / 'out').write_text('in the way')
    command = [str(executable_path('lerobot-serve')), 'demo', '--seconds', '2']
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert 'out/demo' in result.stderr
    assert 'Traceback' not in result.stderr
