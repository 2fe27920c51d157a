# SPDX-License-Identifier: Apache-2.0
"""
The gate for remote real-time chunking: what a robot plays is what LeRobot's own loop plays.

Edge, wire and server on one side, LeRobot's policy, guidance, tracker and queue on the other, the
same observations, seeds and delays; compared are bytes. `lerobot-serve bench rtc_parity` runs a
thousand scripts of this.
"""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import LEROBOT  # noqa: E402
from support.policies.relative_rig import make_relative, reanchored  # noqa: E402
from support.rtc_parity import scene  # noqa: E402
from support.rtc_parity.parity import Different, Parity  # noqa: E402
from support.rtc_parity.script import HORIZONS, RULES  # noqa: E402

from lerobot_serve.edge.action_queue import ActionQueue  # noqa: E402
from lerobot_serve.policies.lerobot.prediction.processors import (  # noqa: E402
    PrefixReanchorer,
)
from lerobot_serve.server.inference import request_validation  # noqa: E402

# each planted fault below shows within FEW
SCRIPTS, RELATIVE_SCRIPTS, FEW = 20, 12, 12

if LEROBOT.rtc_config is None:
    pytest.skip(f'LeRobot {LEROBOT.version} has no real-time chunking', allow_module_level=True)


@pytest.fixture(scope='module')
def loops(tmp_path_factory):
    made = Parity(scene.build(tmp_path_factory.mktemp('parity') / 'smolvla'))
    yield made
    made.close()


@pytest.fixture(scope='module')
def relative_loops(tmp_path_factory):
    folder = make_relative(scene.build(tmp_path_factory.mktemp('parity') / 'relative'))
    made = Parity(folder, reanchored)
    yield made
    made.close()


def run(loops: Parity, scripts: int) -> Counter:
    """Run scripts, each compared byte by byte; return what they had."""
    guided, had = loops.guided, Counter()
    for number in range(scripts):
        script = loops.run(number)
        had.update((script.rule, script.horizon))
    had['guided'] = loops.guided - guided
    return had


@pytest.mark.slow
def test_a_robot_plays_what_lerobots_loop_plays(loops):
    had = run(loops, SCRIPTS)
    assert set(had) == {*RULES, *HORIZONS, 'guided'}
    assert had['guided'] > 2 * SCRIPTS


def test_relative_actions_too(relative_loops):
    assert run(relative_loops, RELATIVE_SCRIPTS)['guided'] > 2 * RELATIVE_SCRIPTS


def test_the_gate_notices_a_prefix_that_lacks_a_row(loops, monkeypatch):
    whole = ActionQueue.leftover
    monkeypatch.setattr(ActionQueue, 'leftover', lambda queue, limit: whole(queue, limit - 1))
    with pytest.raises(Different):
        run(loops, FEW)


def test_the_gate_notices_a_delay_that_is_off_by_one(loops, monkeypatch):
    monkeypatch.setattr(request_validation, 'prefix_rows', lambda _: 1)
    with pytest.raises(Different, match='merged'):
        run(loops, FEW)


def test_the_gate_notices_another_seed(loops, monkeypatch):
    answer = loops.remote.answer
    monkeypatch.setattr(loops.remote, 'answer', lambda *asked: (1 + answer(*asked)[0], asked[1]))
    with pytest.raises(Different, match='turn 0: merged'):
        run(loops, 1)


def test_the_gate_notices_a_prefix_that_stays_at_the_old_state(relative_loops, monkeypatch):
    monkeypatch.setattr(PrefixReanchorer, 'reanchor_prefix', lambda _, robot: robot)
    with pytest.raises(Different, match='merged'):
        run(relative_loops, FEW)
