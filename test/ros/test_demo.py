"""The demo, as a newcomer runs it: a robot that moves, a summary, and nothing left running."""

from __future__ import annotations

import json
import subprocess

import pytest

from lerobot_serve.cli.processes import executable_path


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


def test_a_demo_that_cannot_write_says_so(tmp_path):
    (tmp_path / 'out').write_text('in the way')
    command = [str(executable_path('lerobot-serve')), 'demo', '--seconds', '2']
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert 'out/demo' in result.stderr
    assert 'Traceback' not in result.stderr
