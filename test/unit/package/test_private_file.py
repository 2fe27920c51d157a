# SPDX-License-Identifier: Apache-2.0
"""A file with a secret is private when only its owner may read it, or root and one group."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from lerobot_serve.private_file import mode_of_others

ROOT, USER = 0, 1000


def mode_of(owner: int, mode: int) -> int:
    status = SimpleNamespace(st_uid=owner, st_mode=0o100000 | mode)
    return mode_of_others(SimpleNamespace(stat=lambda: status))


@pytest.mark.parametrize('owner', [ROOT, USER])
def test_every_mode(owner: int):
    for mode in range(0o1000):
        group, others = mode >> 3 & 7, mode & 7
        # writing or running is never the right of a group
        is_private = others == 0 and (group == 0 or (group == 4 and owner == ROOT))
        assert (mode_of(owner, mode) == 0) is is_private, oct(mode)


def test_a_file_of_this_user(tmp_path):
    file = tmp_path / 'secret'
    file.touch(0o600)
    assert mode_of_others(file) == 0
    file.chmod(0o604)
    assert mode_of_others(file) == 0o004
    file.chmod(0o640)
    assert mode_of_others(file) == (0 if os.getuid() == ROOT else 0o040)


def test_a_file_that_is_missing_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        mode_of_others(tmp_path / 'none')
