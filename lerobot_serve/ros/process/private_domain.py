# SPDX-License-Identifier: Apache-2.0
"""
Reserve a ROS domain unused on this machine, for demo, tests and benchmarks.

A demo must not move a real robot, and two test runs must not share a domain.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import os
from pathlib import Path
import stat
import tempfile

from lerobot_serve.shared_memory.segments import take_lock

# above 101 the ports of a domain may be taken by the system for outgoing connections
DOMAINS = range(1, 101)
FIRST_PORT, DOMAIN_PORTS = 7400, 250
TABLES = Path('/proc/net/udp'), Path('/proc/net/udp6')
_held: list[int] = []


class NoFreeDomain(RuntimeError):
    """Every domain is reserved or in use, or none can be reserved."""


def udp_ports(domain: int) -> range:
    """Return the UDP ports of a domain by the DDS standard."""
    return range(FIRST_PORT + DOMAIN_PORTS * domain, FIRST_PORT + DOMAIN_PORTS * (domain + 1))


def is_in_use(domain: int, tables: Sequence[Path] = TABLES) -> bool:
    """Return whether any process uses the domain, of an earlier run or of other software."""
    taken = set(udp_ports(domain))
    for table in tables:
        # a missing table means that the protocol is disabled
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        if taken & {int(line.split()[1].rpartition(':')[2], 16) for line in lines}:
            return True
    return False


def reserve_domain() -> int:
    """
    Reserve a free domain for the life of this process, on this machine, and set it in os.environ.

    Child processes inherit it. Main thread, before ROS starts. Raises NoFreeDomain.
    """
    folder = _own_folder()
    for domain in DOMAINS:
        lock = take_lock(folder / str(domain), os.O_RDWR | os.O_CREAT)
        if lock is None:
            continue
        if is_in_use(domain):
            os.close(lock)
            continue
        # held until the process ends
        _held.append(lock)
        os.environ['ROS_DOMAIN_ID'] = str(domain)
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        os.environ.pop('ROS_LOCALHOST_ONLY', None)
        return domain
    raise NoFreeDomain(
        f'all {len(DOMAINS)} ROS domains are in use; end the processes that lock files in {folder}'
    )


def _own_folder() -> Path:
    """Return the folder of the locks, which others cannot write to. Raises NoFreeDomain."""
    folder = Path(tempfile.gettempdir()) / f'lerobot_serve_domains_{os.getuid()}'
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    status = folder.lstat()
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()):
        raise NoFreeDomain(
            f'{folder} is not a folder of this user, and domains are reserved there; remove it, '
            'or set TMPDIR to a folder of your own'
        )
    folder.chmod(0o700)
    return folder
