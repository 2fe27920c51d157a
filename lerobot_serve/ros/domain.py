"""
A ROS domain that nobody else on this machine uses: for demo, tests and benchmarks.

A demo must not move a real robot, and two test runs must not hear each other.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
import tempfile

# above 101 the ports of a domain may be taken by the system for outgoing connections
DOMAINS = range(1, 101)
_held: list[object] = []


class NoDomain(RuntimeError):
    """Every domain is taken."""


def reserve() -> int:
    """
    Take a free domain for the life of this process, this machine only; set it in os.environ.

    Children inherit it. Main thread, before ROS starts. Raises NoDomain.
    """
    folder = Path(tempfile.gettempdir()) / f'lerobot_serve_domains_{os.getuid()}'
    folder.mkdir(exist_ok=True)
    for domain in DOMAINS:
        # held until the process ends
        handle = open(folder / str(domain), 'w')  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            continue
        _held.append(handle)
        os.environ['ROS_DOMAIN_ID'] = str(domain)
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        os.environ.pop('ROS_LOCALHOST_ONLY', None)
        return domain
    raise NoDomain(f'all {len(DOMAINS)} domains are taken; end what holds the files in {folder}')
