# SPDX-License-Identifier: Apache-2.0
"""Addresses of gateways, and what belongs to which link."""

from __future__ import annotations

import builtins

import pytest

from lerobot_serve.client import PolicyClient, WrongSettings
from lerobot_serve.client.gateway_address import gateway_address
from lerobot_serve.client.settings import client_settings


def settings(server: str = 'grpc://127.0.0.1:8703', **changes):
    return client_settings(server, **{'client_id': 'notebook', **changes})


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
        settings(**changes)


def test_the_name_is_that_of_the_client():
    made = settings()
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
