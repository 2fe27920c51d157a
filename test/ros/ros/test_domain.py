# SPDX-License-Identifier: Apache-2.0
"""A domain is free when no other run holds it and no process is heard in it."""

from __future__ import annotations

from contextlib import closing
import os
from pathlib import Path
import socket
import subprocess
import sys

import pytest

from lerobot_serve.ros.process import private_domain

RESERVE = """
from lerobot_serve.ros.process import private_domain
print(private_domain.reserve_domain())
"""


def reserved() -> int:
    """Return the domain that another process takes now."""
    done = subprocess.run([sys.executable, '-c', RESERVE], capture_output=True, check=True)
    return int(done.stdout)


def bound(port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(('127.0.0.1', port))
    return opened


def test_a_domain_in_which_a_process_is_heard_is_not_free():
    free = reserved()
    ports = private_domain.udp_ports(free)
    for port in (ports[0], ports[-1]):
        with closing(bound(port)):
            assert private_domain.is_in_use(free)
            assert reserved() != free
        assert not private_domain.is_in_use(free)


def test_nodes_are_heard_in_their_domain(node):
    assert private_domain.is_in_use(int(os.environ['ROS_DOMAIN_ID']))


@pytest.mark.parametrize('number', [private_domain.DOMAINS[0], private_domain.DOMAINS[-1]])
def test_no_port_is_one_for_outgoing_connections(number):
    low = int(open('/proc/sys/net/ipv4/ip_local_port_range').read().split()[0])  # noqa: SIM115
    assert private_domain.udp_ports(number)[-1] < low


def test_a_machine_without_tables_has_free_domains(tmp_path):
    assert not private_domain.is_in_use(1, [tmp_path / 'udp'])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where the domains of this user are reserved; it does not exist yet."""
    monkeypatch.setattr(private_domain.tempfile, 'gettempdir', lambda: str(tmp_path))
    return tmp_path / f'lerobot_serve_domains_{os.getuid()}'


def test_a_link_in_place_of_a_lock_leads_nowhere(folder, tmp_path, monkeypatch):
    precious = tmp_path / 'precious'
    precious.write_text('precious')
    folder.mkdir()
    for number in private_domain.DOMAINS:
        (folder / str(number)).symlink_to(precious)
    with pytest.raises(private_domain.NoFreeDomain, match=str(folder)):
        private_domain.reserve_domain()
    assert precious.read_text() == 'precious'


@pytest.mark.parametrize('kind', ['link', 'file', 'of another user'])
def test_a_folder_of_others_is_not_used(folder, tmp_path, monkeypatch, kind):
    if kind == 'link':
        folder.symlink_to(tmp_path)
    elif kind == 'file':
        folder.touch()
    else:
        folder.mkdir()
        os.chown(folder, 12345, -1)
    with pytest.raises(
        private_domain.NoFreeDomain, match=f'{folder} is not a folder of this user'
    ):
        private_domain.reserve_domain()


def test_others_cannot_write_where_domains_are_reserved(folder, monkeypatch):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    monkeypatch.setattr(private_domain, 'is_in_use', lambda _: True)
    with pytest.raises(private_domain.NoFreeDomain, match='are in use'):
        private_domain.reserve_domain()
    assert folder.stat().st_mode & 0o777 == 0o700
