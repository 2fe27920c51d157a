# SPDX-License-Identifier: Apache-2.0
"""The parameters that say where the shared state is."""

from __future__ import annotations

import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.storage.address import check_address, state_address

URL = 'postgresql://router@db.site:5432/fleet'


def test_no_url_is_a_file():
    assert state_address('', 'default') is None


def test_an_address_has_a_name_without_its_user():
    address = state_address(URL, 'north_1')
    assert address.name == "the state of site 'north_1' at db.site:5432/fleet"
    assert address.schema == 'lerobot_serve_north_1'


@pytest.mark.parametrize(
    'url',
    ['postgresql://router:secret@db/fleet', 'postgresql://db/fleet?password=secret'],
)
def test_a_password_is_refused_and_not_repeated(url):
    with pytest.raises(ParameterError, match='PGPASSFILE') as refused:
        check_address(url, 'default')
    assert 'secret' not in str(refused.value)


@pytest.mark.parametrize(
    'url', ['mysql://db/fleet', 'postgresql://db', 'db.site', 'postgresql://db:99999/x']
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ParameterError, match='state_url must be as postgresql://USER@HOST'):
        RouterParameters(state_url=url).check()


@pytest.mark.parametrize('site', ['', 'North', 'a b', 'x' * 41, 'a-b', '-a', "a'; DROP"])
def test_what_is_no_site_is_refused(site):
    with pytest.raises(ParameterError, match='state_site must be 1 to 40'):
        RouterParameters(state_url=URL, state_site=site).check()


@pytest.mark.parametrize(
    ('url', 'hosts'),
    [
        ('postgresql:///fleet', 'localhost'),
        ('postgresql:///fleet?host=/var/run/postgresql', '/var/run/postgresql'),
        (
            'postgresql://u@one:5432,two:5433/fleet?target_session_attrs=read-write',
            'one:5432,two:5433',
        ),
        ('postgres://[::1]:5432/fleet', '[::1]:5432'),
    ],
)
def test_addresses_of_libpq_are_taken(url, hosts):
    address = state_address(url, 'default')
    assert address.name == f"the state of site 'default' at {hosts}/fleet"
