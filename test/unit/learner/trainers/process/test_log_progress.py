# SPDX-License-Identifier: Apache-2.0
"""Steps and loss in the lines of lerobot-train and of other programs."""

from __future__ import annotations

import pytest

from lerobot_serve.learner.trainers.process.output_log import LogProgress
from lerobot_serve.learner.trainers.trainer_file import LOSS_PATTERN, STEP_PATTERN

LINE = (
    'INFO 2026-11-26 12:00:00 ot_train.py:450 step:{step} smpl:16 ep:1 epch:0.27 loss:{loss} '
    'grdn:45.123 lr:1.0e-05 updt_s:0.1 data_s:0.0'
)
BAR = 'Training: 25%|##4       | {step}/400 [00:10<00:30, 10.0step/s]'


def defaults(steps: int) -> LogProgress:
    return LogProgress(STEP_PATTERN, LOSS_PATTERN, steps)


def test_lines_of_lerobot_train():
    seen = defaults(400)
    assert seen.progress().loss is None and seen.progress().remaining_s is None
    assert seen.see(BAR.format(step=0), 100.0) is False
    assert seen.see(BAR.format(step=100), 110.0)
    assert seen.progress().done_share == 0.25 and seen.progress().loss is None
    assert seen.progress().remaining_s == pytest.approx(30.0)
    assert seen.see(LINE.format(step=200, loss='0.123'), 120.0)
    assert (seen.progress().done_share, seen.progress().loss) == (0.5, 0.123)
    assert seen.progress().remaining_s == pytest.approx(20.0)
    assert not seen.see('Creating dataset', 121.0)


def test_rounded_thousands_never_go_back():
    seen = defaults(4000)
    shares = []
    for step, line in ((1400, BAR), ('1K', LINE), ('2K', LINE), (1900, BAR), ('2.5K', LINE)):
        seen.see(line.format(step=step, loss='1e-2'), 1.0)
        shares.append(seen.progress().done_share)
    assert shares == [0.35, 0.35, 0.5, 0.5, 0.625]


@pytest.mark.parametrize(
    'line', ['Map: 100%|###| 60/60 [00:00<00:00]', 'step:', 'step:x loss:none', 'substep:3', '']
)
def test_other_lines_are_no_progress(line):
    seen = defaults(400)
    assert not seen.see(line, 1.0)
    assert seen.progress().done_share == 0


def test_a_training_has_at_most_all_of_its_steps():
    seen = defaults(10)
    seen.see('step:12', 1.0)
    assert seen.progress().done_share == 1.0


def test_without_steps_only_the_loss_is_known():
    seen = defaults(0)
    assert seen.see(LINE.format(step=200, loss='0.5'), 1.0)
    assert (seen.progress().done_share, seen.progress().loss) == (0.0, 0.5)


def test_patterns_of_other_programs():
    seen = LogProgress(r'iter (\d+),', r'l=([\d.]+)', 50)
    assert seen.see('iter 5, l=2.5', 1.0)
    assert (seen.progress().done_share, seen.progress().loss) == (0.1, 2.5)
