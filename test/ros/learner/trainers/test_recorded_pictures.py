# SPDX-License-Identifier: Apache-2.0
"""What LeRobot wrote is read without it: each row with its own picture, from rows and videos."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.recording.example_bag import EdgeBag, Step
from lerobot_serve.learner.trainers.pictures import read_pictures
from lerobot_serve.learner.trainers.recorded import read_rows, RecordedInfo
from lerobot_serve.tools.cli.main import main
from lerobot_serve_interfaces.msg import EpisodeOutcome, ExecutedAction

pytest.importorskip('lerobot', reason='LeRobot writes the dataset')
pytestmark = pytest.mark.slow
LENGTHS = (7, 1, 12)
CAMERA = 'observation.images.wrist'


@pytest.fixture(scope='module')
def bag(tmp_path_factory):
    """The brightness of a picture is the number of its row; a person has every other episode."""
    rows = iter(range(sum(LENGTHS)))
    made = EdgeBag(tmp_path_factory.mktemp('bags') / 'bag', size=(48, 64))

    def change(step: Step) -> None:
        brightness = 10 * next(rows)
        step.frames['wrist'] = np.full((48, 64, 3), brightness, np.uint8)
        if step.action.episode_id == 'e1':
            step.action.source = ExecutedAction.SOURCE_PERSON

    outcomes = (EpisodeOutcome.SUCCESS, EpisodeOutcome.FAILURE, None)
    for number, (length, outcome) in enumerate(zip(LENGTHS, outcomes, strict=True)):
        made.episode(f'e{number}', length, outcome=outcome, change=change)
    return made.close()


@pytest.mark.parametrize('codec', ['png', 'libsvtav1'])
def test_each_row_has_its_picture(bag, tmp_path, codec):
    data = tmp_path / 'data'
    assert main(['dataset', str(bag), str(data), '--vcodec', codec]) == 0
    info = RecordedInfo(data)
    assert info.cameras[CAMERA] == ('image' if codec == 'png' else 'video')
    rows = read_rows(info)
    assert rows.authors.episode.tolist() == np.repeat(range(3), LENGTHS).tolist()
    assert rows.authors.succeeded == {0}
    assert rows.authors.by_person().tolist() == [False] * 7 + [True] + [False] * 12
    assert rows.state.shape == rows.action.shape == (20, 6)
    for wanted in (np.arange(20), np.array([3, 7, 8, 19])):
        found = read_pictures(info, rows, wanted, CAMERA, lambda picture: picture, lambda: None)
        assert found.shape == (len(wanted), 48, 64, 3)
        brightness = found.mean(axis=(1, 2, 3))
        assert np.abs(brightness - 10 * wanted).max() <= (0 if codec == 'png' else 4)
