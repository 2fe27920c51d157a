# SPDX-License-Identifier: Apache-2.0
"""The parameters that say where the shared state is."""

from __future__ import annotations

import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shared_state.address import check_address, state_address

URL = 'postgresql://router@db.site:5432/fleet'


def test_no_url_is_a_file():
    assert state_address('', 'default') is None


def test_an_address_has_a_name_without_its_user():
    address = state_address(URL, 'north-1')
    assert address.name == "the state of site 'north-1' at db.site:5432/fleet"
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


@pytest.mark.parametrize('site', ['', 'North', 'a b', 'x' * 41, '-a', "a'; DROP"])
def test_what_is_no_site_is_refused(site):
    with pytest.raises(ParameterError, match='state_site must be 1 to 40'):
        RouterParameters(state_url=URL, state_site=site).check()
