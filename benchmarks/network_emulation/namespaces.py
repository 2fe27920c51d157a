# SPDX-License-Identifier: Apache-2.0
"""
Network namespaces and tun interfaces, as Linux has them. Main thread of a process of its own that
has no other threads: what is unshared or joined here holds for the whole process.

Without root a user namespace comes with them. Raises OSError where the system allows neither.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from pathlib import Path
import socket
import struct

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
# in /proc/PID/ns
FILES = {CLONE_NEWNS: 'mnt', CLONE_NEWUSER: 'user', CLONE_NEWNET: 'net'}
MS_REC, MS_PRIVATE = 0x4000, 0x4_0000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
SIOCSIFADDR, SIOCSIFDSTADDR, SIOCSIFMTU, SIOCSIFTXQLEN = 0x8916, 0x8918, 0x8922, 0x8943
SIOCSIFNETMASK = 0x891C
NAME = 'link0'
# what waits for us to read it; the queue of the link is the relay's, so this one must not be full
WAITING_PACKETS = 16384
_libc = ctypes.CDLL(None, use_errno=True)


def own_user_namespace() -> None:
    """Become able to make namespaces, where one is not root."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        return
    _check('unshare a user namespace', _libc.unshare(CLONE_NEWUSER))
    Path('/proc/self/setgroups').write_text('deny')
    Path('/proc/self/uid_map').write_text(f'{user} {user} 1')
    Path('/proc/self/gid_map').write_text(f'{group} {group} 1')


def new_network() -> int:
    """Enter a network that holds nothing but its own loopback; return what it is joined by."""
    _check('unshare a network namespace', _libc.unshare(CLONE_NEWNET))
    _raise_flag('lo', IFF_UP)
    return os.open('/proc/self/ns/net', os.O_RDONLY)


def join(namespace: Path, kind: int) -> None:
    """Enter a namespace of this kind, unless this process is in it."""
    if os.path.samefile(Path('/proc/self/ns') / FILES[kind], namespace):
        return
    file = os.open(namespace, os.O_RDONLY)
    try:
        _check(f'join {namespace}', _libc.setns(file, kind))
    finally:
        os.close(file)


def own_shared_memory() -> None:
    """Have a /dev/shm that nobody else sees, as on a machine of one's own."""
    _check('unshare a mount namespace', _libc.unshare(CLONE_NEWNS))
    _check('keep mounts', _libc.mount(None, b'/', None, MS_REC | MS_PRIVATE, None))
    _check('mount /dev/shm', _libc.mount(b'tmpfs', b'/dev/shm', b'tmpfs', 0, None))


def open_tun(address: str, peer: str, mtu_bytes: int, netmask: str = '') -> int:
    """
    Return the file of a new interface in the present network, from which IP packets come. With a
    netmask it leads to a whole network, and `peer` is its own address.
    """
    tun = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, _request(NAME, struct.pack('<H', IFF_TUN | IFF_NO_PI)))
    # the length of the queue takes root of the whole machine, all else root of this network
    last = (
        (SIOCSIFNETMASK, _address(netmask))
        if netmask
        else (SIOCSIFTXQLEN, struct.pack('<i', WAITING_PACKETS))
    )
    with _control() as control:
        for operation, value in (
            (SIOCSIFADDR, _address(address)),
            (SIOCSIFDSTADDR, _address(peer)),
            (SIOCSIFMTU, struct.pack('<i', mtu_bytes)),
            last,
        ):
            fcntl.ioctl(control, operation, _request(NAME, value))
    _raise_flag(NAME, IFF_UP)
    return tun


def _raise_flag(interface: str, flag: int) -> None:
    with _control() as control:
        held = fcntl.ioctl(control, SIOCGIFFLAGS, _request(interface))
        (flags,) = struct.unpack_from('<H', held, 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, _request(interface, struct.pack('<H', flags | flag)))


def _control() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _request(interface: str, value: bytes = b'') -> bytes:
    """Return a struct ifreq."""
    return struct.pack('16s24s', interface.encode(), value)


def _address(address: str) -> bytes:
    """Return a struct sockaddr_in."""
    return struct.pack('<HH4s', socket.AF_INET, 0, socket.inet_aton(address))


def _check(what: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f'cannot {what}: {os.strerror(number)}')
