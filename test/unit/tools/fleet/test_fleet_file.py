# SPDX-License-Identifier: Apache-2.0
"""Fleet files that are hostile or large: refused with a sentence, and read in time."""

from __future__ import annotations

import pytest

from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet import fleet_file
from lerobot_serve.tools.fleet.fleet_file import read_fleet

NULL = 'null:joints=6,chunk=30,cameras=,fps=30'


def test_a_file_without_end_is_refused_unread(monkeypatch):
    monkeypatch.setattr(fleet_file, 'TEXT_LIMIT', 10)
    with pytest.raises(UserError, match='at most 10 characters, got 11'):
        read_fleet('x' * 11, 'f')


def test_a_file_of_20_000_lines_is_read_in_one_pass(monkeypatch):
    """It took 6 s: two passes of the reader in Python."""
    text = 'robots:\n' + ''.join(f'  r{n}:\n    simulated: true\n' for n in range(10_000))
    composed: list[int] = []
    compose = fleet_file.compose
    monkeypatch.setattr(fleet_file, 'compose', lambda text: (composed.append(1), compose(text))[1])
    file = read_fleet(text, 'f')
    assert len(file.content['robots']) == 10_000
    assert file.lines['robots', 'r9999', 'simulated'] == 20_001
    assert composed == [1]
