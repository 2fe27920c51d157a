# SPDX-License-Identifier: Apache-2.0
"""The folder that a trainer leaves: whole and readable, or nothing."""

from __future__ import annotations

import pytest

from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.output import new_policy_folder


def test_a_folder_appears_whole_and_readable(tmp_path):
    output = tmp_path / 'below' / 'new'
    with new_policy_folder(output) as folder:
        (folder / 'meta').mkdir(parents=True, mode=0o700)
        (folder / 'meta' / 'weights').write_text('1')
        (folder / 'meta' / 'weights').chmod(0o600)
        assert not output.exists()
    assert (output / 'meta' / 'weights').stat().st_mode & 0o777 == 0o644
    assert (output / 'meta').stat().st_mode & 0o777 == 0o755
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize('error', [TrainerError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path, error):
    with pytest.raises(error), new_policy_folder(tmp_path / 'new') as folder:
        folder.mkdir()
        (folder / 'weights').write_text('1')
        raise error
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_replaced(tmp_path):
    (tmp_path / 'new.part').mkdir()
    (tmp_path / 'new.part' / 'half').write_text('1')
    with new_policy_folder(tmp_path / 'new') as folder:
        folder.mkdir()
    assert not list((tmp_path / 'new').iterdir())


@pytest.mark.parametrize('kind', ['file', 'folder', 'link'])
def test_nothing_is_overwritten(tmp_path, kind):
    there = tmp_path / 'new'
    make = {
        'file': lambda: there.write_text('1'),
        'folder': there.mkdir,
        'link': lambda: there.symlink_to('nowhere'),
    }
    make[kind]()
    expected = pytest.raises(TrainerError, match='exists and is not overwritten; give')
    with expected, new_policy_folder(there):
        pass


def test_a_folder_that_cannot_be_written_has_a_remedy(tmp_path):
    (tmp_path / 'file').write_text('')
    expected = pytest.raises(TrainerError, match=r'cannot be written: .*; free space')
    with expected, new_policy_folder(tmp_path / 'file' / 'new') as folder:
        folder.mkdir()
