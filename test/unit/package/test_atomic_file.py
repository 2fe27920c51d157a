# SPDX-License-Identifier: Apache-2.0
"""A file is replaced as a whole, or not at all."""

from __future__ import annotations

import os

import pytest

from lerobot_serve.atomic_file import replacement_of


@pytest.mark.parametrize('durable', [False, True])
def test_the_new_content_takes_the_place_of_the_old(tmp_path, durable):
    file = tmp_path / 'file'
    file.write_text('old')
    with replacement_of(file, durable=durable) as part:
        part.write_text('new')
        assert file.read_text() == 'old'
    assert file.read_text() == 'new'
    assert os.listdir(tmp_path) == ['file']


def test_an_error_keeps_the_old_content_and_leaves_no_part(tmp_path):
    file = tmp_path / 'file'
    file.write_text('old')
    with pytest.raises(KeyboardInterrupt), replacement_of(file, suffix='.new') as part:
        part.write_text('half')
        assert part.name == 'file.new'
        raise KeyboardInterrupt
    assert file.read_text() == 'old'
    assert os.listdir(tmp_path) == ['file']


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacement_of(tmp_path / 'file'):
        pass
    assert not os.listdir(tmp_path)
