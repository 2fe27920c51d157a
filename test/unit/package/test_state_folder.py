# SPDX-License-Identifier: Apache-2.0
"""Files that a node needs later: whole, in its state folder alone, and private if secret."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
import signal
import socket
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.private_file import mode_of_others
from lerobot_serve.state_folder import FolderLock, OWNER_FILE, state_folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    return tmp_path


def test_a_folder_that_is_named_is_made(home):
    wanted = home / 'a' / 'b'
    assert state_folder(str(wanted), '/policy_router') == wanted
    assert wanted.is_dir()
    assert state_folder(str(wanted), '/policy_router') == wanted


def test_without_one_it_is_named_after_the_node_below_ros_home(home, monkeypatch):
    folder = state_folder('', '/policy_router')
    assert folder == home / 'ros' / 'lerobot_serve' / 'policy_router'
    other = state_folder('', '/cell_2/policy_router')
    assert other.parent == folder.parent
    assert other.name.startswith('cell_2_policy_router-')
    monkeypatch.delenv('ROS_HOME')
    assert state_folder('', '/r') == home / 'home' / '.ros' / 'lerobot_serve' / 'r'


def test_two_nodes_never_share_one():
    names = ('/a/policy_router', '/a_policy_router', '/a/policy/router', '/a.policy_router')
    assert len({state_folder('', name) for name in names}) == len(names)


def test_the_home_of_the_user_may_be_meant(home):
    assert state_folder('~/here', '/r') == home / 'home' / 'here'


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ('{home}/file/below', 'Not a directory'),
        ('{home}/file', 'File exists'),
        ('{home}/' + 'n' * 300, 'too long'),
        ('~nobody_of_that_name/here', 'home directory'),
        ('{home}/a\0b', 'null'),
    ],
)
def test_one_that_cannot_be_made_is_refused_in_one_line(home, given, words):
    (home / 'file').touch()
    with pytest.raises(ParameterError, match=words) as refused:
        state_folder(given.format(home=home), '/policy_router')
    text = str(refused.value)
    assert text.startswith('state_folder ')
    assert 'set a writable folder' in text
    assert '\n' not in text
    assert '\0' not in text


# one owner


def owned(folder: Path, node: str = '/b/edge_controller') -> FolderLock:
    return FolderLock(folder, node, 'state_folder')


def test_a_second_owner_is_refused_with_the_first_and_what_to_do(home):
    lock = FolderLock(home / 'new', '/a/edge_controller', 'state_folder')
    with pytest.raises(UserError) as refused:
        owned(home / 'new')
    owner = f'/a/edge_controller (process {os.getpid()} on {socket.gethostname()})'
    assert str(refused.value) == (
        f'{home / "new"} is in use by {owner}, and two nodes would undo what the other one keeps '
        'there. Stop that one, or set another state_folder'
    )
    # as one that is deconfigured and configured again
    lock.release()
    lock.release()
    again = owned(home / 'new')
    assert (lock.fault, again.fault) == ('', '')
    again.release()


def test_a_kill_ends_a_lock_and_neither_a_child_nor_another_program_keeps_it(home):
    """The owner starts a child, replaces itself as a node does that hears nothing, is killed."""
    code = (
        'import os, subprocess, sys; from pathlib import Path; '
        'from lerobot_serve.state_folder import FolderLock; '
        'lock = FolderLock(Path(sys.argv[1]), "/x", "state_folder"); '
        'child = subprocess.Popen(["sleep", "60"], close_fds=False); '
        'print(child.pid, flush=True); '
        'os.read(0, 1); os.execvp("cat", ["cat"])'
    )
    with subprocess.Popen(
        [sys.executable, '-c', code, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        child = int(process.stdout.readline())
        try:
            with pytest.raises(UserError, match=rf'/x \(process {process.pid} '):
                owned(home)
            process.stdin.write(b'\nreplaced\n')
            process.stdin.flush()
            assert process.stdout.readline() == b'replaced\n'
            owned(home).release()
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)
    owned(home).release()


@pytest.mark.parametrize(
    'content',
    [b'\xff\x00\x1b[2J', b'', b'x' * 100_000, None],
    ids=['bytes', 'empty', 'long', 'pipe'],
)
def test_whatever_the_file_of_the_owner_holds_the_text_is_one_short_line(home, content):
    lock = owned(home)
    (home / OWNER_FILE).unlink()
    if content is None:
        os.mkfifo(home / OWNER_FILE)
    else:
        (home / OWNER_FILE).write_bytes(content)
    with pytest.raises(UserError, match='in use by') as refused:
        owned(home)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600
    lock.release()


def test_a_folder_that_cannot_be_written_is_locked_all_the_same(home):
    (home / OWNER_FILE).symlink_to(home / 'elsewhere')
    lock = owned(home)
    assert lock.fault.startswith(f'{home} cannot be written')
    assert not (home / 'elsewhere').exists()
    with pytest.raises(UserError, match='in use by another process'):
        owned(home)
    lock.release()


def test_a_file_system_without_locks_is_said(home, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, 'flock', refuse)
    lock = owned(home)
    assert lock.fault == (
        f'{home} cannot be locked (No locks available); no other node may use it'
    )
    lock.release()


def test_where_no_folder_can_be_locked_as_on_nfs_a_file_in_it_is(home, monkeypatch):
    flock = fcntl.flock

    def of_files(handle: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, how)

    monkeypatch.setattr(fcntl, 'flock', of_files)
    lock = owned(home)
    assert not lock.fault
    with pytest.raises(UserError, match=rf'in use by .* \(process {os.getpid()} on '):
        owned(home)
    lock.release()
    owned(home).release()


def test_a_folder_that_is_a_file_is_refused(home):
    (home / 'file').touch()
    with pytest.raises(UserError, match=r'cannot be opened: .*; set another state_folder'):
        owned(home / 'file')


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
