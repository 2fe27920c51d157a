# SPDX-License-Identifier: Apache-2.0
"""The configuration that Zenoh gets, and what is refused before it does."""

from __future__ import annotations

import json

import pytest
from support.zenoh.access_rig import Keys
import zenoh

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.zenoh.credentials import CA, CERTIFICATE, PRIVATE_KEY
from lerobot_serve.zenoh.settings import ACCESS, configuration, ZenohSettings
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings


@pytest.fixture
def site(tmp_path):
    return Keys(tmp_path / 'keys')


@pytest.fixture
def keys(site):
    return site.add('robot', 'robot_1')


def test_zenoh_takes_it():
    text = configuration(ZenohSettings(connect=('tcp/10.0.0.1:7447',), listen=('tcp/[::]:7447',)))
    taken = zenoh.Config.from_json5(text)
    assert taken.get_json('mode') == '"peer"'
    assert taken.get_json('scouting/multicast/enabled') == 'false'
    queue = 'transport/link/tx/queue'
    assert taken.get_json(f'{queue}/size/interactive_high') == '16'
    assert taken.get_json(f'{queue}/congestion_control/drop/wait_before_drop') == '20000'


def keep_alive_ms(**endpoints: tuple[str, ...]) -> float:
    """Return the time between two keep-alives."""
    taken = zenoh.Config.from_json5(configuration(ZenohSettings(**endpoints)))
    transmission = json.loads(taken.get_json('transport/link/tx'))
    return transmission['lease'] / transmission['keep_alive']


@pytest.mark.parametrize('host', ['10.0.0.1', '0.0.0.0', '[::]', 'localhost.lab', '1127.0.0.1'])
def test_keep_alives_come_before_tcp_takes_a_connection_to_be_idle(host):
    """The kernel's shortest retransmission timeout is 200 ms and a round trip."""
    assert keep_alive_ms(connect=('tcp/127.0.0.1:7447', f'tcp/{host}:7447')) <= 200
    assert keep_alive_ms(connect=(f'tcp/{host}:7447',), listen=('tcp/127.0.0.1:7448',)) <= 200


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost', '[::1]', '127.1.2.3'])
def test_within_one_host_keep_alives_are_rare(host):
    assert keep_alive_ms(connect=(f'tcp/{host}:7447',)) == 500
    assert keep_alive_ms(listen=(f'tcp/{host}:7447',), connect=('tcp/localhost:7448',)) == 500


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
    with pytest.raises(UserError, match='is not a Zenoh endpoint'):
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


def refusal(folder, *, listen: bool = False) -> str:
    """Return why these keys are refused; the key is in no text."""
    end = ('tls/localhost:7447',)
    settings = ZenohSettings(
        connect=() if listen else end, listen=end if listen else (), keys=folder
    )
    with pytest.raises(UserError) as refused:
        configuration(settings)
    text = str(refused.value)
    key = folder / PRIVATE_KEY
    secrets = key.read_text().splitlines()[1:-1] if key.is_file() else []
    assert not [line for line in secrets if line in text or line in repr(refused.value)]
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return text


@pytest.mark.parametrize('mode', [0o604, 0o644, 0o620, 0o660])
def test_a_key_that_others_read_is_refused(keys, mode):
    (keys / PRIVATE_KEY).chmod(mode)
    assert f'has mode {mode:04o}' in refusal(keys)
    assert f'chmod 600 {keys / PRIVATE_KEY}' in refusal(keys)


def test_an_expired_key_is_refused(site, keys, monkeypatch):
    site.expire(keys, monkeypatch)
    assert 'has expired' in refusal(keys)
    assert 'keys rotate' in refusal(keys)


def test_a_key_of_another_certificate_is_refused(site, keys):
    other = site.add('robot', 'robot_2')
    (keys / PRIVATE_KEY).write_bytes((other / PRIVATE_KEY).read_bytes())
    assert f'is not the certificate of {PRIVATE_KEY}' in refusal(keys)


def test_a_key_of_another_site_is_refused(keys, tmp_path):
    other = Keys(tmp_path / 'other').add('robot', 'robot_1')
    (keys / CA).write_bytes((other / CA).read_bytes())
    assert f'was not signed by {CA}' in refusal(keys)


@pytest.mark.parametrize('name', [CA, CERTIFICATE, PRIVATE_KEY])
def test_a_file_that_is_no_pem_is_refused(keys, name):
    (keys / name).write_bytes(b'\x00 no pem')
    assert 'copy the folder' in refusal(keys)


def test_a_robot_may_not_listen(keys):
    assert 'which may not listen' in refusal(keys, listen=True)


def test_who_listens_needs_an_access_file(site):
    folder = site.add('server', '/policy_server')
    (folder / ACCESS).unlink()
    assert f'{ACCESS} is missing' in refusal(folder, listen=True)


@pytest.mark.parametrize('content', ['', '[]', '{}', '{"default_permission": "allow"}'])
def test_an_access_file_that_allows_everything_is_refused(site, content):
    folder = site.add('server', '/policy_server')
    (folder / ACCESS).write_text(content)
    assert 'is not an access file' in refusal(folder, listen=True)


def test_zenoh_takes_the_access_file(site):
    folder = site.add('server', '/policy_server')
    site.add('router', '/policy_router')
    settings = ZenohSettings(listen=('tls/localhost:7447',), keys=folder)
    taken = zenoh.Config.from_json5(configuration(settings))
    assert taken.get_json('access_control/default_permission') == '"deny"'
    assert '"router.policy_router"' in taken.get_json('access_control/subjects')
    secret = (folder / PRIVATE_KEY).read_text().splitlines()[1]
    assert secret not in configuration(settings) + str(taken)


def test_keys_that_encrypt_nothing_are_refused():
    with pytest.raises(UserError, match='nothing is encrypted'):
        zenoh_settings(ServerParameters(zenoh_keys='/keys'))
    with pytest.raises(ParameterError, match='no server is reached over Zenoh'):
        EdgeParameters(client_id='robot', zenoh_keys='/keys').check()


@pytest.mark.parametrize('name', ['zenoh_connect', 'zenoh_listen'])
def test_an_endpoint_that_an_edge_does_not_use_is_refused(name):
    given = {name: ('tcp/127.0.0.1:7447',)}
    with pytest.raises(ParameterError, match='set link to zenoh'):
        EdgeParameters(client_id='robot', **given).check()
    EdgeParameters(client_id='robot', link='zenoh', **given).check()
