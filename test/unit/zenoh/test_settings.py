# SPDX-License-Identifier: Apache-2.0
"""The configuration that Zenoh gets, and what is refused before it does."""

from __future__ import annotations

import pytest
import zenoh

from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.settings import CA, CERTIFICATE, configuration, PRIVATE_KEY, ZenohSettings


@pytest.fixture
def keys(tmp_path):
    for name in (CA, CERTIFICATE, PRIVATE_KEY):
        (tmp_path / name).write_text('pem')
    return tmp_path


def test_zenoh_takes_it():
    text = configuration(ZenohSettings(connect=('tcp/10.0.0.1:7447',), listen=('tcp/[::]:7447',)))
    taken = zenoh.Config.from_json5(text)
    assert taken.get_json('mode') == '"peer"'
    assert taken.get_json('scouting/multicast/enabled') == 'false'


def test_with_keys_both_ends_show_a_certificate(keys):
    taken = zenoh.Config.from_json5(
        configuration(ZenohSettings(connect=('tls/host:7447',), keys=keys))
    )
    assert taken.get_json('transport/link/tls/enable_mtls') == 'true'
    assert str(keys / CA) in taken.get_json('transport/link/tls/root_ca_certificate')


@pytest.mark.parametrize(
    'endpoint', ['', 'host:7447', 'udp/host:7447', 'tcp/host', 'tcp/a b:1', 'tcp/host:7447#x=y']
)
def test_an_endpoint_is_protocol_host_and_port(endpoint):
    with pytest.raises(UserError, match='is no Zenoh endpoint'):
        configuration(ZenohSettings(connect=(endpoint,)))


def test_an_encrypted_endpoint_needs_keys_and_keys_an_encrypted_endpoint(keys):
    with pytest.raises(UserError, match='needs zenoh_keys'):
        configuration(ZenohSettings(connect=('tls/host:7447',)))
    with pytest.raises(UserError, match='is not encrypted'):
        configuration(ZenohSettings(connect=('tcp/host:7447',), keys=keys))


@pytest.mark.parametrize('name', [CA, CERTIFICATE, PRIVATE_KEY])
def test_a_missing_file_is_named(keys, name):
    (keys / name).unlink()
    with pytest.raises(UserError, match=name):
        configuration(ZenohSettings(connect=('tls/host:7447',), keys=keys))
