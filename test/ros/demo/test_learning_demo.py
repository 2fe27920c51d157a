# SPDX-License-Identifier: Apache-2.0
"""The acts of learning, as a newcomer runs them."""

from __future__ import annotations

import json
import subprocess

import pytest

from lerobot_serve.demo.tour.act_order import LEARNING, TOURS
from lerobot_serve.tools.processes import executable_path

pytest.importorskip('torch', reason='the shipped policies run on torch')
pytest.importorskip('lerobot', reason='LeRobot writes the dataset')

# eleven minutes on two idle cores; trainings have the lowest priority and wait for all others
LIMIT_S = 3000.0
pytestmark = [pytest.mark.release, pytest.mark.limit_s(LIMIT_S)]
LEFT_S = 60.0


def test_two_rounds_reach_more_a_poisoned_one_is_refused_and_a_regression_taken_back(tmp_path):
    command = [str(executable_path('lerobot-serve')), 'demo', '--no-dashboard', '--acts']
    result = subprocess.run(
        [*command, ','.join(TOURS[LEARNING])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S - LEFT_S,
    )
    folder = tmp_path / 'out' / 'demo'
    summary = json.loads((folder / 'summary.json').read_text())
    shown = f'{result.stdout[-6000:]}\n{result.stderr[-2000:]}'
    assert summary['error'] == '', shown
    acts = summary['acts']
    assert tuple(acts) == tuple(TOURS[LEARNING])
    assert all(found['shown'] for found in acts.values()), shown
    assert result.returncode == 0, shown
    check_learning(acts['learn'])
    assert acts['poison']['episodes'] == 0
    assert acts['regress']['episodes_with_it'] > 0
    assert acts['regress']['episodes_with_it_a_second_later'] == 0
    # what it was rolled back from is not an ancestor of the next round
    champion = acts['learn']['rounds'][-1]['version']
    assert acts['regress']['learner_builds_on'] == champion
    audit = summary['audit']
    assert audit['violations'] == 0
    assert {audit['checks'][check] for check in ('gated', 'evidence', 'sticky')} == {'holds'}
    assert summary['exit_status'] == {'loop': 0}
    for text in ('refused', 'rolled back', 'promoted', 'finished'):
        assert text in result.stdout, shown
    assert 'The acts' in (folder / 'report.html').read_text()


def check_learning(found: dict) -> None:
    """Each round was trained from the one before, and proved itself."""
    first, second = found['rounds']
    assert first['version'] != second['version']
    assert min(first['evidence'], second['evidence']) >= 20
    assert found['after_percent'] - found['before_percent'] >= 20
