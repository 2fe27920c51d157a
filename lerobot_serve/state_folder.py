# SPDX-License-Identifier: Apache-2.0
"""
The folder of a node for what survives its process, and the lock by which it has one owner. Any
thread.

The folder itself is locked: a read-only folder is locked, too, and no removed file ends the lock.
A hidden file names the owner; it is what is locked on NFS, which locks no folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
import socket

from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError

VARIABLE = '$ROS_HOME'


def ros_home() -> Path:
    """Return the folder of ROS for what nodes and verbs keep, which need not exist."""
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros')


def expanded(path: str) -> Path:
    """Return a path with $ROS_HOME or ~ at its start replaced. Raises RuntimeError."""
    first, _, rest = path.partition('/')
    return ros_home() / rest if first == VARIABLE else Path(path).expanduser()


OWNER_FILE, OWNER_LIMIT = '.owner', 300
# not inherited: neither a child nor the program that replaces this one keeps what is opened
FOLDER = os.O_RDONLY | os.O_DIRECTORY
LOCKED_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


def state_path(given: str, node_name: str) -> Path:
    """
    Return the path of the folder, which need not exist: `given`, or one named after the node
    below ROS_HOME. Raises ParameterError.
    """
    folder = (
        Path(given) if given else ros_home() / 'lerobot_serve' / file_name(node_name.strip('/'))
    )
    try:
        if '\0' in given:
            raise ValueError('it holds a null byte')
        return folder.expanduser()
    except (RuntimeError, ValueError) as error:
        raise _refused(folder, error) from error


def state_folder(given: str, node_name: str) -> Path:
    """Create the folder of `state_path` if needed and return it. Raises ParameterError."""
    folder = state_path(given, node_name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from error
    return folder


def _refused(folder: Path, error: Exception) -> ParameterError:
    why = getattr(error, 'strerror', None) or error
    return ParameterError(
        f'state_folder {str(folder)!r} cannot be created: {why}; set a writable folder'
    )


class FolderLock:
    """
    Held from its creation until `release`, or until the process is gone, however it ends. `fault`
    says why others are not kept out, or cannot read who the owner is; empty without a fault.
    """

    _handle = -1

    def __init__(self, folder: Path, node: str, setting: str) -> None:
        """
        Create the folder if needed. `node` is the name of the owner, `setting` names what gives
        another folder. Raises UserError, with the owner if there is one.
        """
        self._folder, self._node, self._setting = folder, node, setting
        self.renew()

    def renew(self) -> None:
        """Lock the folder that is there now, where another one may have taken its place."""
        self.release()
        self.fault, folder, setting = '', self._folder, self._setting
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(folder, FOLDER)
        except OSError as error:
            raise UserError(
                f'{folder} cannot be opened: {error.strerror}; set another {setting}'
            ) from None
        try:
            self._lock()
        except BlockingIOError:
            self.release()
            raise UserError(
                f'{folder} is in use by {_owner(folder)}, and two nodes would undo what the other '
                f'one keeps there. Stop that one, or set another {setting}'
            ) from None
        except OSError as error:
            self.fault = f'{folder} cannot be locked ({error.strerror}); no other node may use it'
        try:
            _write_owner(folder, f'{self._node} (process {os.getpid()} on {socket.gethostname()})')
        except OSError as error:
            self.fault = self.fault or f'{folder} cannot be written ({error.strerror})'

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # NFS locks a file that is open for writing, and no folder
            self.release()
            self._handle = os.open(self._folder / OWNER_FILE, LOCKED_FILE, 0o644)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock; may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def _owner(folder: Path) -> str:
    """Return who owns the folder."""
    try:
        handle = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            text = os.read(handle, OWNER_LIMIT).decode(errors='replace')
        finally:
            os.close(handle)
    except OSError:
        text = ''
    return text if text and text.isprintable() else 'another process'


def _write_owner(folder: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(folder / OWNER_FILE, flags, 0o644)
    try:
        os.write(handle, text.encode()[:OWNER_LIMIT])
    finally:
        os.close(handle)
