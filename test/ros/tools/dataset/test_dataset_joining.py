# SPDX-License-Identifier: Apache-2.0
"""Many episodes are joined in groups, with the same rows and in the same order as at once."""

from __future__ import annotations

import pytest
from support.tools.datasets import bag_of, dataset, ids_of, rows_of

from lerobot_serve.tools.dataset import lerobot_writer

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow

NAMES = tuple(f'episode_{number}' for number in range(7))


@pytest.mark.parametrize('vcodec', ['h264', 'png'])
def test_in_groups_of_two_as_at_once(tmp_path, monkeypatch, vcodec):
    bag = bag_of(tmp_path / 'bag', NAMES)
    outs = {size: tmp_path / f'by_{size}' for size in (2, 100)}
    for size, out in outs.items():
        monkeypatch.setattr(lerobot_writer, 'GROUP_SIZE', size)
        assert dataset(bag, out, '--check', '--vcodec', vcodec) == 0
    assert rows_of(outs[2]) == rows_of(outs[100])
    for out in outs.values():
        assert tuple(ids_of(out)) == NAMES
    # and more behind them
    more = bag_of(tmp_path / 'more', tuple(f'{name}_more' for name in NAMES))
    monkeypatch.setattr(lerobot_writer, 'GROUP_SIZE', 2)
    assert dataset(more, outs[2], '--append', '--check', '--vcodec', vcodec) == 0
    rows = rows_of(outs[2])
    assert [row['index'] for row in rows] == list(range(len(rows)))
    assert len(ids_of(outs[2])) == rows[-1]['episode_index'] + 1 == 2 * len(NAMES)
