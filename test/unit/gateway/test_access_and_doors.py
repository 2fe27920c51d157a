# SPDX-License-Identifier: Apache-2.0
"""Where doors listen and whom they let in; how a door is found, and what is said without it."""

from __future__ import annotations

from pathlib import Path
import socket
import sys

import pytest
from support.gateway.gateway_rig import GatewayRig

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure, open_exposure
from lerobot_serve.gateway.door_parameters import DoorEntry, DOORS, EndpointSettings
from lerobot_serve.gateway.doors import load_door

TOKEN = 'a' * 20


@pytest.fixture
def tokens_file(tmp_path) -> Path:
    path = tmp_path / 'tokens'
    path.write_text(f'anna {TOKEN}\n')
    path.chmod(0o600)
    return path


def exposure(**changes):
    return open_exposure('http', EndpointSettings(**{'port': 8700, **changes}))


def test_on_this_machine_everybody_is_let_in():
    there = exposure()
    assert (there.host, there.port, there.is_loopback) == ('127.0.0.1', 8700, True)
    assert there.lets_in('')
    assert not there.warning


@pytest.mark.parametrize('host', ['0.0.0.0', '::', '192.168.1.5', 'robot.lan'])
def test_others_are_let_in_only_with_tokens_or_the_operators_word(host, tokens_file):
    with pytest.raises(UserError, match=r'http\.tokens_file is empty; set http\.tokens_file, or'):
        exposure(host=host)
    assert 'lets everybody in' in exposure(host=host, allow_anyone=True).warning
    assert 'without TLS' in exposure(host=host, tokens_file=str(tokens_file)).warning


def test_tokens_hold_on_this_machine_too(tokens_file):
    there = exposure(tokens_file=str(tokens_file))
    assert there.needs_token
    assert [there.lets_in(token) for token in (TOKEN, '', TOKEN[1:], TOKEN + 'a')] == [
        *(True, False, False, False)
    ]
    assert there.name_of(TOKEN) == 'anna'
    assert not there.name_of('b' * 20)


def test_a_file_of_tokens_that_others_read_is_refused(tokens_file):
    tokens_file.chmod(0o644)
    with pytest.raises(UserError, match='chmod 600'):
        exposure(tokens_file=str(tokens_file))


def test_tls_needs_both_files_and_valid_ones(tmp_path):
    wrong = tmp_path / 'key.pem'
    wrong.write_text('no key')
    with pytest.raises(UserError, match='belong together'):
        exposure(certificate_file=str(wrong))
    with pytest.raises(UserError, match='cannot be used'):
        exposure(certificate_file=str(wrong), key_file=str(wrong))
    with pytest.raises(UserError, match='No such file'):
        exposure(certificate_file=str(tmp_path / 'none'), key_file=str(wrong))


def test_every_door_has_a_port_of_its_own():
    ports = [entry.port for entry in DOORS.values()]
    assert ports == [8700, 8701, 8702, 8703, 8704]


def test_an_unknown_door_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="'https' is not a door; there are http, openpi, lerobot"):
        load_door('https')


def test_a_missing_library_is_one_sentence_with_its_remedy(tmp_path, monkeypatch):
    (tmp_path / 'door_of_a_test.py').write_text('import zmq_missing.sub\n')
    monkeypatch.syspath_prepend(tmp_path)
    table = {'x': DoorEntry('door_of_a_test', 'Door', 1, 'X', {'zmq_missing.sub': 'pyzmq-x==1'})}
    with pytest.raises(UserError) as refused:
        load_door('x', table)
    assert str(refused.value) == (
        'the door x needs the Python package zmq_missing, which is missing; '
        'python3 -m pip install pyzmq-x==1'
    )


def test_a_door_is_imported_when_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / 'second_door_of_a_test.py').write_text('class Door: pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    table = {'x': DoorEntry('second_door_of_a_test', 'Door', 1, 'X', {})}
    assert 'second_door_of_a_test' not in sys.modules
    assert load_door('x', table) is sys.modules['second_door_of_a_test'].Door
    absent = {'x': DoorEntry('lerobot_serve.gateway.none.door', 'Door', 1, 'X', {})}
    with pytest.raises(UserError, match='not part of this installation'):
        load_door('x', absent)


@pytest.mark.parametrize('name', DOORS)
async def test_a_port_in_use_and_a_missing_mapping_are_refused_with_a_sentence(name, grpc_thread):
    gateway, make = GatewayRig().gateway, load_door(name)
    with socket.create_server(('127.0.0.1', 0)) as other:
        port = other.getsockname()[1]
        door = make(gateway, Exposure(name, port=port), EndpointSettings())
        said = f'the door {name} cannot listen on 127.0.0.1 port {port}: .*; set {name}.port or'
        with pytest.raises(UserError, match=said):
            await door.start()
    for _ in range(2):
        await door.stop()
    with pytest.raises(UserError, match=r'mapping .*none\.yaml'):
        make(gateway, Exposure(name), EndpointSettings(mapping='none.yaml'))
