# SPDX-License-Identifier: Apache-2.0
"""A domain is free when no other run holds it and no process is heard in it."""

from __future__ import annotations

from contextlib import closing
import os
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
