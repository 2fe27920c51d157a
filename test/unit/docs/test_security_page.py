# SPDX-License-Identifier: Apache-2.0
"""The tables of doors in docs/security.md say what parameters and code say."""

from __future__ import annotations

import re

import pytest
from support.paths import REPOSITORY

from lerobot_serve.access import connections
from lerobot_serve.gateway.door_parameters import DOORS, EndpointSettings, OWNERS
from lerobot_serve.gateway.grpc_server import server
from lerobot_serve.gateway.grpc_server.calls import CallSettings
from lerobot_serve.gateway.lerobot_async.door import OBSERVATION_LIMIT_S
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters
from lerobot_serve.gateway.policy_service.door import STREAM_LIMIT

PAGE = (REPOSITORY / 'docs' / 'security.md').read_text()
SETTINGS = {
    name: {
        each: getattr(door_settings(GatewayParameters(), name), each)
        for each in EndpointSettings.__dataclass_fields__
        if name in OWNERS.get(each, DOORS)
    }
    for name in DOORS
}
GRPC = ('lerobot', 'policy_service')
HALF_OPEN, ARRIVAL, UNREAD = 'half-open', 'arrival of a message', 'unread reply'


def table(first: str) -> dict[str, dict[str, str]]:
    """Return the cells of each door, by columns, of the table that begins so."""
    ((text, _),) = re.findall(rf'(\| {first} \|(.|\n)*?)\n\n', PAGE)
    lines = [[cell.strip() for cell in line.split('|')[1:-1]] for line in text.splitlines()]
    head, _, *rows = lines
    return {row[0].strip('`'): dict(zip(head, row, strict=True)) for row in rows}


ROWS = table('bounds')


def seconds(cell: str) -> float:
    return float(cell.partition(' s')[0])


def test_every_door_has_a_row():
    assert list(ROWS) == list(table('door')) == list(DOORS)


@pytest.mark.parametrize('door', DOORS)
def test_the_bounds_are_the_defaults_of_the_parameters(door):
    row, settings = ROWS[door], SETTINGS[door]
    for name in ('max_message_mb', 'max_connections'):
        assert row[f'`{name}`'] == f'{settings[name]}'
    for cell in (row[HALF_OPEN], row[ARRIVAL], row[UNREAD]):
        for name in re.findall(r'`(\w+)`', cell):
            if name in settings:
                assert seconds(cell) == settings[name]
            else:
                # in a stream, beside the bound of a call
                assert hasattr(GatewayParameters(), name) and f'stream `{name}`' in cell


@pytest.mark.parametrize('door', DOORS)
def test_every_bound_that_is_a_parameter_is_in_the_row(door):
    told = set(re.findall(r'`(\w+)`', ' '.join([*ROWS[door], *ROWS[door].values()])))
    bounds = {name for name in SETTINGS[door] if name.startswith('max_') or 'timeout' in name}
    assert bounds <= told


@pytest.mark.parametrize('door', DOORS)
def test_every_door_has_tokens_tls_and_listens_on_this_machine(door):
    assert {'tokens_file', 'certificate_file', 'key_file'} <= SETTINGS[door].keys()
    assert SETTINGS[door]['host'] == '127.0.0.1'


def test_bounds_that_are_no_parameters_are_those_of_the_code():
    for door in ('http', 'openpi'):
        assert seconds(ROWS[door][HALF_OPEN]) == connections.HEAD_LIMIT_S
        assert connections.HEAD_LIMIT_S == connections.HANDSHAKE_LIMIT_S
    for door in GRPC:
        assert seconds(ROWS[door][HALF_OPEN]) == server.HANDSHAKE_MS / 1000
    assert seconds(ROWS['lerobot'][ARRIVAL]) == OBSERVATION_LIMIT_S
    first_message_s = CallSettings(1, 1.0).first_message_s
    assert seconds(ROWS['policy_service'][ARRIVAL]) == first_message_s
    assert ROWS['policy_service'][UNREAD].split()[0] == f'{STREAM_LIMIT}'
