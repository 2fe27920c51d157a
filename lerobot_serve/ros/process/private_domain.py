"""
A ROS domain that nobody else on this machine uses: for demo, tests and benchmarks.

A demo must not move a real robot, and two test runs must not hear each other.
"""

from __future__ import annotations

from collections.abc import Sequence
import fcntl
import os
from pathlib import Path
import tempfile

# above 101 the ports of a domain may be taken by the system for outgoing connections
DOMAINS = range(1, 101)
FIRST_PORT, DOMAIN_PORTS = 7400, 250
TABLES = Path('/proc/net/udp'), Path('/proc/net/udp6')
_held: list[object] = []


class NoFreeDomain(RuntimeError):
    """Every domain is taken, or a process is heard in it."""


def udp_ports(domain: int) -> range:
    """Return the UDP ports of a domain, as the DDS standard numbers them."""
    return range(FIRST_PORT + DOMAIN_PORTS * domain, FIRST_PORT + DOMAIN_PORTS * (domain + 1))


def is_in_use(domain: int, tables: Sequence[Path] = TABLES) -> bool:
    """Return whether a process is in a domain: one of an earlier run, or not one of ours."""
    taken = set(udp_ports(domain))
    for table in tables:
        # no table, no such protocol
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        if taken & {int(line.split()[1].rpartition(':')[2], 16) for line in lines}:
            return True
    return False


def reserve_domain() -> int:
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
        if is_in_use(domain):
            handle.close()
            continue
        _held.append(handle)
        os.environ['ROS_DOMAIN_ID'] = str(domain)
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        os.environ.pop('ROS_LOCALHOST_ONLY', None)
        return domain
    raise NoFreeDomain(
        f'all {len(DOMAINS)} domains are taken; end what holds the files in {folder}'
    )
