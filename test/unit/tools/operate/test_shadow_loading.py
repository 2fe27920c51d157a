# SPDX-License-Identifier: Apache-2.0
"""A policy is loaded into the shadow by a verb, and unloaded."""

from __future__ import annotations

from typing import Any

import pytest
from support.tools.loading_fleet import LoadingFleet
from support.tools.operator_states import router_of

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.operate.outcome import NotReached, PartlyDone, ResultUnknown
from lerobot_serve.tools.operate.rollout.shadow_loading import (
    load_shadow,
    shadow_server,
    stop_shadow,
)

ROUTER = router_of('/cell/policy_router')
SERVER = '/cell/rehearsal/policy_server'


def fleet(shadow: str = 'rehearsal/policy_server', **more: Any) -> LoadingFleet:
    return LoadingFleet(
        ROUTER, 'v2@2', parameters={ROUTER.name: {'shadow_server': shadow}}, **more
    )


def load(client: LoadingFleet, folder: str = '/models/v2') -> Any:
    return load_shadow(client.loader, ROUTER, folder, reason='before the canary')


def test_a_directory_is_loaded_and_who_did_it_is_recorded():
    client = fleet()
    result = load(client)
    steps = ('deactivate', 'cleanup', 'set', 'configure', 'activate')
    assert client.calls == [(SERVER, step) for step in steps]
    assert client.given == {'policy_path': '/models/v2', 'policy_name': ''}
    assert client.commands == [
        ('NOTE', 'kim@lab: loads /models/v2 into the shadow: before the canary')
    ]
    assert f'{SERVER} serves v2@2 in shadow' in result.text


@pytest.mark.parametrize('reply', [NotReached('not there'), ResultUnknown('not there')])
def test_a_load_that_no_router_records_is_done_all_the_same(reply):
    client = fleet(replies={'NOTE': reply})
    assert load(client).text.endswith('. /cell/policy_router has not recorded it: not there')
    client.replies['NOTE'] = (False, 'not configured')
    text = stop_shadow(client.loader, ROUTER).text
    assert text.endswith('has not recorded it: not configured')


def test_the_shadow_is_unloaded():
    client = fleet()
    result = stop_shadow(client.loader, ROUTER)
    assert [step for _, step in client.calls] == ['deactivate', 'cleanup']
    assert 'is unloaded' in result.text and 'unloads the shadow' in client.commands[0][1]


@pytest.mark.parametrize(
    ('client', 'folder', 'text'),
    [
        (fleet(shadow=''), '/models/v2', 'has no shadow'),
        (fleet(missing=SERVER), '/models/v2', 'does not run'),
        (fleet(), '/elsewhere/v2', 'not below /models'),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(client, folder, text):
    with pytest.raises(UserError, match='Nothing was changed') as raised:
        load(client, folder)
    assert text in str(raised.value)
    assert client.calls == client.commands == []


def test_a_load_that_fails_half_way_says_what_the_shadow_serves():
    client = fleet(replies={(SERVER, 'configure'): False})
    with pytest.raises(PartlyDone, match='could not configure: the files') as raised:
        load(client)
    assert f'Now {SERVER} serves nothing' in str(raised.value)
    assert client.commands == []


@pytest.mark.parametrize(('shadow', 'full'), [('/x/s', '/x/s'), ('s', '/cell/s')])
def test_its_name_is_relative_to_the_router(shadow, full):
    assert shadow_server(fleet(shadow=shadow), ROUTER.name) == full


def test_a_name_is_no_directory(capsys):
    assert main(['rollout', 'shadow', 'v2']) == 2
    assert 'give the directory of a policy, with a /' in capsys.readouterr().err
