# SPDX-License-Identifier: Apache-2.0
"""
Who may use the local path: processes of the same user, root, and those of a group that the
operator names. The kernel says who the other side of a Unix socket is. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
import grp
import os
import socket
import struct

from lerobot_serve.errors import UserError

CREDENTIALS = struct.Struct('3i')
GROUP = struct.Struct('I')
# of Linux; Python names no constant for it
SO_PEERGROUPS = 59
# as many as a socket of Python reads; of a process with more only the primary one counts
GROUPS_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Access:
    """`group_id` is that of a group whose members are allowed, too; None: no group."""

    group_id: int | None = None

    def is_same_user(self, peer: socket.socket) -> bool:
        """Return whether the process at the other side could read this one's memory anyway."""
        return _user_id(peer) in (os.getuid(), 0)

    def is_allowed(self, peer: socket.socket) -> bool:
        """Return whether the process at the other side may use the path."""
        return self.is_same_user(peer) or self.group_id in _group_ids(peer)


SAME_USER = Access()


def access_of_group(name: str) -> Access:
    """Return the access with a group, without one for an empty name. Raises UserError."""
    if not name:
        return SAME_USER
    try:
        return Access(grp.getgrnam(name).gr_gid)
    except KeyError:
        raise UserError(
            f'local_group is {name!r}, and this host has no such group; create it with '
            f'`groupadd {name}`, or leave local_group empty for processes of the same user'
        ) from None


def _user_id(peer: socket.socket) -> int:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user_id, _ = CREDENTIALS.unpack(raw)
    return int(user_id)


def _group_ids(peer: socket.socket) -> set[int]:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, _, primary = CREDENTIALS.unpack(raw)
    try:
        others = peer.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
    except OSError:
        others = b''
    return {primary, *(group for (group,) in GROUP.iter_unpack(others))}
