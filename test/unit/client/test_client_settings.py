# SPDX-License-Identifier: Apache-2.0
"""What callers give to `connect` and `open`, for both links: taken, or refused with the remedy."""

from __future__ import annotations

import builtins

import pytest
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.client import PolicyClient, ServerUnavailable, WrongSettings
from lerobot_serve.client.fake_server import FakeServer
from lerobot_serve.client.gateway_address import gateway_address
from lerobot_serve.client.settings import client_settings
from lerobot_serve.tools.keys.access import KeyRole
from lerobot_serve.tools.keys.site import make_site, opened_site


def settings(server: str = 'policy_router', **changes: object):
    return client_settings(server, **changes)


def gateway_settings(server: str = 'grpc://127.0.0.1:8703', **changes: object):
    return client_settings(server, **{'client_id': 'notebook', **changes})


def test_a_server_is_named_as_its_node():
    for given in ('policy_router', '/policy_router', 'zenoh:/policy_router'):
        assert settings(server=given).server == '/policy_router'
    assert settings(server='prod/policy_server').server == '/prod/policy_server'
    assert settings(endpoints=['tcp/a:1', 'tcp/b:2']).zenoh.connect == ('tcp/a:1', 'tcp/b:2')


def test_two_processes_have_two_names():
    assert settings().client_id != settings().client_id
    assert settings(client_id='eval').session_name([]) == 'client/eval'
    used = ['client/eval', 'client/eval.2']
    assert settings(client_id='client/eval').session_name(used) == 'client/eval.3'
    assert settings().session_name(used, 'other') == 'client/other'


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'server': 'policy router'}, 'give the name of a node'),
        ({'endpoints': ()}, 'give one, such as tcp/127.0.0.1:7447'),
        ({'client_id': '\n'}, 'give a printable name'),
        ({'timeout_s': 0}, 'every wait is bounded'),
        ({'timeout_s': float('inf')}, 'every wait is bounded'),
        ({'keys': '/nowhere'}, 'zenoh_keys needs ca.pem'),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(changes, words):
    with pytest.raises(WrongSettings, match=words):
        settings(**changes)


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ({'endpoints': '127.0.0.1:7447'}, 'give PROTOCOL/HOST:PORT'),
        ({'endpoints': 'tls/127.0.0.1:7447'}, 'needs zenoh_keys'),
        ({'site': 'a b'}, 'zenoh_site'),
    ],
)
def test_what_zenoh_does_not_take_is_refused_in_its_words(arguments, words):
    with pytest.raises(WrongSettings, match=words):
        PolicyClient.connect(**arguments)


def test_a_server_that_is_not_there_is_unavailable_with_what_to_check():
    endpoint = free_endpoint()
    with pytest.raises(ServerUnavailable, match=f'nothing answers at {endpoint}; check that'):
        PolicyClient.connect(endpoints=endpoint, timeout_s=0.3)


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'codec': 'png'}, "give 'raw' or 'jpeg'"),
        ({'jpeg_quality': 0}, 'give 1 to 100'),
        ({'timeout_s': -1}, 'every wait is bounded'),
    ],
)
def test_a_session_with_wrong_arguments_is_not_opened(changes, words):
    server = FakeServer()
    with PolicyClient(server.connection()) as client:
        with pytest.raises(WrongSettings, match=words):
            client.open(**changes)
        assert not server.opened
        # its name is free
        assert client.open().client_id == 'client/tester'


def test_keys_say_who_the_client_is(tmp_path):
    folder = tmp_path / 'keys'
    make_site(folder, 'lab', 10)
    with opened_site(folder) as site:
        robot = site.add(KeyRole.ROBOT, 'eval_1', 5, hosts=(), direct=False)
        server = site.add(KeyRole.SERVER, '/policy_server', 5, hosts=('127.0.0.1',), direct=True)
    made = settings(keys=folder / robot.folder, endpoints='tls/127.0.0.1:1')
    assert made.client_id == 'eval_1'
    assert made.session_name([]) == 'eval_1'
    with pytest.raises(WrongSettings, match='the keys speak for eval_1 alone'):
        made.session_name(['eval_1'])
    with pytest.raises(WrongSettings, match='the keys speak for eval_1 alone'):
        made.session_name([], 'other')
    with pytest.raises(WrongSettings, match=r"client_id is 'other', and .* speaks for eval_1"):
        settings(keys=folder / robot.folder, endpoints='tls/127.0.0.1:1', client_id='other')
    with pytest.raises(WrongSettings, match='a client needs those of a robot'):
        settings(keys=folder / server.folder)


@pytest.mark.parametrize(
    ('server', 'target', 'is_encrypted'),
    [
        ('grpc://127.0.0.1:8703', '127.0.0.1:8703', False),
        ('grpcs://gateway.example:443/', 'gateway.example:443', True),
        ('grpc://[::1]:8703', '[::1]:8703', False),
    ],
)
def test_an_address_has_host_port_and_encryption(server, target, is_encrypted):
    address = gateway_address(server, 'secret', None)
    assert (address.target, address.is_encrypted) == (target, is_encrypted)
    assert 'secret' not in repr(address)


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'server': 'grpc://host'}, 'give grpc://HOST:PORT, or grpcs://'),
        ({'server': 'grpc://host:port'}, 'give grpc://HOST:PORT'),
        ({'server': 'grpc://:8703'}, 'give grpc://HOST:PORT'),
        ({'server': 'grpc://host:1/path'}, 'give grpc://HOST:PORT'),
        ({'server': 'grpc://me@host:1'}, 'give grpc://HOST:PORT'),
        ({'tls_ca': 'ca.pem'}, 'is not encrypted; write grpcs://127.0.0.1:8703'),
        ({'server': 'grpcs://host:1', 'tls_ca': '/none.pem'}, 'cannot be read'),
        ({'token': 'a b'}, 'token has other characters'),
        ({'token': 'sécret'}, 'token has other characters'),
        ({'client_id': 'a b'}, 'a gateway takes 1 to 64 letters'),
        ({'endpoints': 'tcp/host:7447'}, 'endpoints is only for a server over Zenoh'),
        ({'site': 'hall'}, 'site is only for a server over Zenoh'),
        ({'keys': 'keys/robot.one'}, 'keys is only for a server over Zenoh'),
        ({'server': 'policy_router', 'token': 'x'}, 'token is only for a gateway'),
        ({'server': 'policy_router', 'tls_ca': 'x'}, 'tls_ca is only for a gateway'),
        (
            {'server': 'policy_router', 'endpoints': 'grpc://host:1'},
            r"the first argument: connect\('grpc://host:1'\)",
        ),
        ({'timeout_s': 0.0}, 'timeout_s is 0.0'),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_sent(changes, words):
    with pytest.raises(WrongSettings, match=words):
        gateway_settings(**changes)


def test_the_name_at_a_gateway_is_that_of_the_client():
    made = gateway_settings()
    assert made.client_id == 'client/notebook'
    assert made.session_name(['client/notebook']) == 'client/notebook.2'
    assert made.gateway.target == '127.0.0.1:8703' and made.zenoh is None


def test_a_plain_address_that_others_can_read_is_a_warning():
    assert not gateway_address('grpc://localhost:1', '', None).warnings
    assert not gateway_address('grpcs://gateway.example:1', '', None).warnings
    (warning,) = gateway_address('grpc://gateway.example:1', '', None).warnings
    assert 'use grpcs://' in warning


def test_an_installation_without_grpc_says_what_to_install(monkeypatch):
    found = builtins.__import__

    def without_grpc(name, *others):
        if name.startswith('lerobot_serve.client.gateway_link'):
            raise ImportError("No module named 'grpc'")
        return found(name, *others)

    monkeypatch.setattr(builtins, '__import__', without_grpc)
    with pytest.raises(WrongSettings, match=r"needs grpcio .* 'lerobot_serve\[client-grpc\]'"):
        PolicyClient.connect('grpc://127.0.0.1:1', timeout_s=0.1)
