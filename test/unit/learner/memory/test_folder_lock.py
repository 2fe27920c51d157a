# SPDX-License-Identifier: Apache-2.0
"""One learner at a time in a folder, whatever became of the last one."""

from __future__ import annotations

import os

import pytest

from lerobot_serve.learner.memory.folder_lock import FolderInUse, FolderLock, LOCK_FILE


def test_a_second_learner_is_refused_with_the_holder(tmp_path):
    lock = FolderLock(tmp_path / 'new', '/learner, process 7 on desk')
    with pytest.raises(FolderInUse, match=r'another learner .*process 7 on desk.* stop it'):
        FolderLock(tmp_path / 'new', 'second')
    lock.release()
    lock.release()
    again = FolderLock(tmp_path / 'new', 'x')
    assert (tmp_path / 'new' / LOCK_FILE).read_text() == 'x'
    again.release()


def test_a_lock_is_not_inherited(tmp_path):
    lock = FolderLock(tmp_path, 'x')
    assert not os.get_inheritable(lock._handle)
    lock.release()


@pytest.mark.parametrize('content', [b'\xff\x00\x1b[2J', b'', b'x' * 100_000])
def test_whatever_the_file_holds_the_text_is_one_line(tmp_path, content):
    lock = FolderLock(tmp_path, 'x')
    (tmp_path / LOCK_FILE).write_bytes(content)
    with pytest.raises(FolderInUse) as refused:
        FolderLock(tmp_path, 'y')
    assert str(refused.value).isprintable() and len(str(refused.value)) < 600
    lock.release()


def test_a_folder_that_cannot_be_made_and_a_link_are_refused(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(FolderInUse, match='cannot be written'):
        FolderLock(tmp_path / 'file', 'x')
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / 'file')
    with pytest.raises(FolderInUse, match='cannot be written'):
        FolderLock(tmp_path, 'x')
