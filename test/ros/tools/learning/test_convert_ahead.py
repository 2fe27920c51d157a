# SPDX-License-Identifier: Apache-2.0
"""Bags are converted ahead of their round, with LeRobot's own classes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.learner.recorded_bags import record_episode
from support.tools.datasets import rows_of

from lerobot_serve.errors import UserError
from lerobot_serve.learner.steps import (
    BagToConvert,
    ConvertJob,
    RefusedBag,
    Report,
    StageJob,
)
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.dataset.episodes import DatasetError
from lerobot_serve.tools.dataset.staging import EpisodeSink
from lerobot_serve.tools.learning import convert
from lerobot_serve.tools.learning.convert import convert_bags, names_in, stage_bags

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow

FILTERS, VCODEC = ('success',), 'png'


def bag_of(folder: Path, name: str) -> BagToConvert:
    episode = record_episode(folder, name, 4)
    return BagToConvert(Path(episode.path), episode.sha256, episode.client_id, episode.episode_id)


def staged(bags: tuple[BagToConvert, ...], out: Path) -> tuple[str, ...]:
    return stage_bags(StageJob(bags, out, FILTERS, VCODEC), ignored).staged


def converted(bags: tuple[BagToConvert, ...], out: Path) -> int:
    """Convert the bags of a round; return the number of episodes of the dataset."""
    return convert_bags(ConvertJob(bags, out, FILTERS, VCODEC, ()), ignored).total_episodes


def ignored(_: Report) -> None:
    pass


@pytest.fixture
def bags(tmp_path):
    return tuple(bag_of(tmp_path, name) for name in 'abc')


@pytest.fixture
def written(monkeypatch):
    """The titles of the episodes that were encoded."""
    found: list[str] = []
    end = EpisodeSink.end

    def count(sink, plan):
        found.append(plan.title)
        end(sink, plan)

    monkeypatch.setattr(EpisodeSink, 'end', count)
    return found


@pytest.mark.parametrize('is_large', [False, True])
def test_what_was_converted_ahead_gives_the_same_dataset(
    tmp_path, monkeypatch, bags, written, is_large
):
    at_once, ahead = tmp_path / 'at_once', tmp_path / 'ahead'
    assert converted(bags, at_once) == 3
    del written[:]
    if is_large:
        monkeypatch.setattr(convert, 'COPIED_BYTES', -1)
    assert staged(bags[:2], ahead) == tuple(bag.sha256 for bag in bags[:2])
    assert len(written) == 2
    # a large dataset is copied once, in the round
    assert len(names_in(ahead)) == (0 if is_large else 2)
    # again, as after a restart of the learner
    staged(bags[:2], ahead)
    assert len(written) == 2
    assert converted(bags, ahead) == 3
    assert len(written) == 3
    assert names_in(ahead) == names_in(at_once)
    assert rows_of(ahead) == rows_of(at_once)
    assert not ahead.with_name('ahead.staging').exists()


@pytest.mark.parametrize('error', [DatasetError('two robots'), BagError('damage')])
def test_bags_that_do_not_agree_are_left_to_their_round(tmp_path, monkeypatch, bags, error):
    def refuse(*_: object, **__: object) -> None:
        raise error

    out = tmp_path / 'dataset'
    with monkeypatch.context() as patch:
        patch.setattr(convert, 'convert', refuse)
        with pytest.raises(UserError, match=str(error)):
            staged(bags, out)
    assert converted(bags, out) == 3


def test_a_bag_that_is_not_the_announced_one_does_not_join_ahead_of_its_round(tmp_path, bags):
    out, reports = tmp_path / 'dataset', []
    changed = msgspec.structs.replace(bags[1], sha256='f' * 64)
    job = StageJob((bags[0], changed, bags[2]), out, FILTERS, VCODEC)
    stage_bags(job, reports.append)
    refused = [each for each in reports if isinstance(each, RefusedBag)]
    assert [(each.sha256, each.reason) for each in refused] == [('f' * 64, convert.CHANGED)]
    assert [name for _, name in names_in(out)] == ['a', 'c']
