# SPDX-License-Identifier: Apache-2.0
"""A bag is converted from its first place where it is the announced one, and reported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lerobot_serve.experience.bag_files import MAGIC
from lerobot_serve.learner.steps.lines import BagToConvert, RefusedBag
from lerobot_serve.tools.learning.convert import CHANGED, UNREADABLE, whole_bags

CONTENT = MAGIC + b'messages' + MAGIC


def bag(folder: Path, content: bytes | None) -> Path:
    folder.mkdir()
    if content is not None:
        (folder / 'bag.mcap').write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ('first', 'reason'),
    [
        (MAGIC + b'a flipped bit' + MAGIC, CHANGED),
        (CONTENT[:-3], UNREADABLE),
        (None, UNREADABLE),
    ],
)
def test_a_damaged_copy_hides_no_good_one(tmp_path, capsys, first, reason):
    damaged, good = bag(tmp_path / 'first', first), bag(tmp_path / 'second', CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    refusals: dict[str, RefusedBag] = {}
    (found,) = whole_bags([BagToConvert(damaged, sha256, 'r', 'e', (good,))], refusals)
    assert found.path == good and not refusals
    assert f'{damaged}' in capsys.readouterr().out
    assert whole_bags([BagToConvert(damaged, sha256, 'r', 'e')], refusals) == []
    assert refusals[sha256].reason == reason
