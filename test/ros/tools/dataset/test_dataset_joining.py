# SPDX-License-Identifier: Apache-2.0
"""Many episodes are joined in groups, with the same rows and in the same order as at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tools.datasets import dataset, rows_of

from benchmarks.recording.example_bag import EdgeBag
from lerobot_serve.tools.dataset import lerobot_writer

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow

NAMES = tuple(f'episode_{number}' for number in range(7))


def episodes_of(out: Path) -> list[str]:
    lines = (out / 'meta/lerobot_serve/episodes.jsonl').read_text().splitlines()
    return [json.loads(line)['episode_id'] for line in lines]


def bag_of(folder: Path, names: tuple[str, ...]) -> Path:
    made = EdgeBag(folder)
    for number, name in enumerate(names):
        made.episode(name, 2 + number % 3, target_xy=(0.2 + 0.01 * number, 0.05))
    return made.close()


@pytest.mark.parametrize('vcodec', ['h264', 'png'])
def test_in_groups_of_two_as_at_once(tmp_path, monkeypatch, vcodec):
    bag = bag_of(tmp_path / 'bag', NAMES)
    outs = {size: tmp_path / f'by_{size}' for size in (2, 100)}
    for size, out in outs.items():
        monkeypatch.setattr(lerobot_writer, 'GROUP_SIZE', size)
        assert dataset(bag, out, '--check', '--vcodec', vcodec) == 0
    assert rows_of(outs[2]) == rows_of(outs[100])
    for out in outs.values():
        assert tuple(episodes_of(out)) == NAMES
    # and more behind them
    more = bag_of(tmp_path / 'more', tuple(f'{name}_more' for name in NAMES))
    monkeypatch.setattr(lerobot_writer, 'GROUP_SIZE', 2)
    assert dataset(more, outs[2], '--append', '--check', '--vcodec', vcodec) == 0
    rows = rows_of(outs[2])
    assert [row['index'] for row in rows] == list(range(len(rows)))
    assert len(episodes_of(outs[2])) == rows[-1]['episode_index'] + 1 == 2 * len(NAMES)
