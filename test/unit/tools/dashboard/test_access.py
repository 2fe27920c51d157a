# SPDX-License-Identifier: Apache-2.0
"""Who may act: every cell of the table, hosts, origins."""

from __future__ import annotations

import pytest

from lerobot_serve.access.addresses import is_loopback_address
from lerobot_serve.tools.dashboard.access import (
    check_access,
    host_name,
    is_known_host,
    is_same_origin,
    Refused,
)

# token, whose it is, private -> status; 0: allowed
TABLE = {
    ('', '', True): 401,
    ('', '', False): 403,
    ('wrong', '', True): 401,
    ('wrong', '', False): 403,
    ('right', 'anna', True): 0,
    ('right', 'anna', False): 403,
}


@pytest.mark.parametrize(('cell', 'status'), TABLE.items())
def test_access(cell, status):
    token, name, is_private = cell
    try:
        check_access(token, name, is_private=is_private)
        refused = 0
    except Refused as error:
        refused = error.status
        assert error.text
    assert refused == status


@pytest.mark.parametrize(
    ('address', 'is_loopback'),
    [
        ('127.0.0.1', True),
        ('127.9.9.9', True),
        ('::1', True),
        ('localhost', True),
        ('0.0.0.0', False),
        ('::', False),
        ('192.168.1.5', False),
        ('gpu1', False),
        ('', False),
    ],
)
def test_loopback(address, is_loopback):
    assert is_loopback_address(address) is is_loopback


NAMES = frozenset({'localhost', 'gpu1'})


@pytest.mark.parametrize(
    ('host', 'is_known'),
    [
        ('localhost:8300', True),
        ('LOCALHOST', True),
        ('gpu1:9000', True),
        ('127.0.0.1:8300', True),
        ('[::1]:8300', True),
        ('192.168.1.5', True),
        ('evil.example', False),
        ('evil.example:8300', False),
        ('localhost.evil.example', False),
        ('127.0.0.1.evil.example', False),
        ('', False),
        (':8300', False),
        ('[evil', False),
    ],
)
def test_a_foreign_host_name_is_refused(host, is_known):
    assert is_known_host(host, NAMES) is is_known


def test_a_host_header_without_its_port():
    assert [host_name(h) for h in ('A:1', 'a', '[::1]:80', '::1')] == ['a', 'a', '::1', ':']


@pytest.mark.parametrize(
    ('origin', 'host', 'is_tls', 'is_same'),
    [
        ('http://localhost:8300', 'localhost:8300', False, True),
        ('https://gpu1', 'gpu1', True, True),
        ('http://gpu1', 'gpu1', True, False),
        ('https://gpu1', 'gpu1', False, False),
        ('http://localhost:8301', 'localhost:8300', False, False),
        ('http://evil.example', 'localhost:8300', False, False),
        ('null', 'localhost:8300', False, False),
        ('', '', False, False),
    ],
)
def test_a_command_comes_from_this_site(origin, host, is_tls, is_same):
    assert is_same_origin(origin, host, is_tls=is_tls) is is_same
