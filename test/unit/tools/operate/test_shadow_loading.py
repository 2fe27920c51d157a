# SPDX-License-Identifier: Apache-2.0
"""A policy is loaded into the shadow by a verb, and unloaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from support.tools.operator_states import router_of

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.operate.outcome import NotReached, PartlyDone, ResultUnknown
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader
from lerobot_serve.tools.operate.rollout.shadow_loading import (
    load_shadow,
    shadow_server,
    stop_shadow,
)

ROUTER = router_of('/cell/policy_router')
SERVER = '/cell/rehearsal/policy_server'


@dataclass
class FakeClient:
    shadow: str = 'rehearsal/policy_server'
    is_there: bool = True
    fails: str = ''
    operator: str = 'kim@lab'
    calls: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def get_parameters(self, node: str, names: list[str]) -> dict[str, Any]:
        if node == ROUTER.name:
            return {'shadow_server': self.shadow}
        if not self.is_there:
            raise NotReached('not there')
        return {'policy_root': '/models'}

    def lifecycle_state(self, server: str) -> str:
        return 'active'

    def change_state(self, server: str, transition: str, timeout_s: float) -> bool:
        self.calls.append((server, transition))
        return transition != self.fails

    def set_parameters(self, server: str, values: dict[str, object]) -> str:
        assert values == {'policy_path': '/models/v2', 'policy_name': ''}
        self.calls.append((server, 'set'))
        return ''

    def server_status(self, server: str) -> tuple[str, str]:
        return 'v2@2', 'no weights'

    def control_slot(self, router: str, command: str, *, reason: str) -> tuple[bool, str]:
        self.notes.append((command, reason))
        return True, 'recorded'


def loader(client: FakeClient) -> ServerLoader:
    return ServerLoader(client, 1.0, lambda _: None)


def load(client: FakeClient, folder: str = '/models/v2') -> Any:
    return load_shadow(loader(client), ROUTER, folder, reason='before the canary')


def test_a_directory_is_loaded_and_who_did_it_is_recorded():
    client = FakeClient()
    result = load(client)
    steps = ('deactivate', 'cleanup', 'set', 'configure', 'activate')
    assert client.calls == [(SERVER, step) for step in steps]
    assert client.notes == [
        ('NOTE', 'kim@lab: loads /models/v2 into the shadow: before the canary')
    ]
    assert f'{SERVER} serves v2@2 in shadow' in result.text


@pytest.mark.parametrize('reply', [NotReached('not there'), ResultUnknown('not there')])
def test_a_load_that_no_router_records_is_done_all_the_same(reply):
    client = FakeClient()

    def fails(*_: object, **__: object) -> Any:
        raise reply

    client.control_slot = fails
    assert load(client).text.endswith('. /cell/policy_router has not recorded it: not there')
    client.control_slot = lambda *_, **__: (False, 'not configured')
    text = stop_shadow(loader(client), ROUTER).text
    assert text.endswith('has not recorded it: not configured')


def test_the_shadow_is_unloaded():
    client = FakeClient()
    result = stop_shadow(loader(client), ROUTER)
    assert [step for _, step in client.calls] == ['deactivate', 'cleanup']
    assert 'is unloaded' in result.text and 'unloads the shadow' in client.notes[0][1]


@pytest.mark.parametrize(
    ('client', 'folder', 'text'),
    [
        (FakeClient(shadow=''), '/models/v2', 'has no shadow'),
        (FakeClient(is_there=False), '/models/v2', 'does not run'),
        (FakeClient(), '/elsewhere/v2', 'not below /models'),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(client, folder, text):
    with pytest.raises(UserError, match='Nothing was changed') as raised:
        load(client, folder)
    assert text in str(raised.value)
    assert client.calls == client.notes == []


def test_a_load_that_fails_half_way_says_what_the_shadow_serves():
    client = FakeClient(fails='configure')
    with pytest.raises(PartlyDone, match='could not configure: no weights') as raised:
        load(client)
    assert f'Now {SERVER} serves nothing' in str(raised.value)
    assert client.notes == []


@pytest.mark.parametrize(('shadow', 'full'), [('/x/s', '/x/s'), ('s', '/cell/s')])
def test_its_name_is_relative_to_the_router(shadow, full):
    assert shadow_server(FakeClient(shadow=shadow), ROUTER.name) == full


def test_a_name_is_no_directory(capsys):
    assert main(['rollout', 'shadow', 'v2']) == 2
    assert 'give the directory of a policy, with a /' in capsys.readouterr().err
