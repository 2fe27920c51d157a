# SPDX-License-Identifier: Apache-2.0
"""TLS to the servers of others: both sides show a certificate, and a wrong one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.policies.remote_peers import CONTRACTS, PEERS, TlsFiles
import yaml

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.remote.peer import PeerUnavailable
from lerobot_serve.policies.remote.policy import RemotePolicy
from lerobot_serve.policies.runtime.request_inputs import blank_request

pytest.importorskip('cryptography')
SCHEMES = {'openpi': 'wss', 'http': 'https', 'lerobot_async': 'grpcs'}
CLIENT = {'tls_certificate_file': 'robot.pem', 'tls_key_file': 'robot.key'}


@pytest.fixture(scope='module')
def keys(tmp_path_factory) -> Path:
    """Return a folder with two authorities, a server and a client."""
    from lerobot_serve.tools.keys.certificates import make_authority, make_certificate

    folder = tmp_path_factory.mktemp('keys')
    authority, other = make_authority('here', 9), make_authority('elsewhere', 9)
    server = make_certificate(authority, 'gpu', 8, hosts=['127.0.0.1'], may_listen=True)
    robot = make_certificate(authority, 'robot', 8, hosts=[], may_listen=False)
    pairs = {'ca': authority, 'other': other, 'gpu': server, 'robot': robot}
    for name, pair in pairs.items():
        (folder / f'{name}.pem').write_bytes(pair.certificate)
        (folder / f'{name}.key').write_bytes(pair.key)
    return folder


@pytest.mark.parametrize('kind', SCHEMES)
def test_certificates_of_both_sides_are_checked(keys, kind):
    if kind == 'lerobot_async':
        pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    peer = PEERS[kind]()
    peer.tls = TlsFiles(keys / 'gpu.pem', keys / 'gpu.key', keys / 'ca.pem')
    peer.start()

    def load(**changes: str) -> RemotePolicy:
        url = peer.url.replace(peer.scheme, SCHEMES[kind], 1)
        content = yaml.safe_load(CONTRACTS[kind]) | {'url': url, 'connect_timeout_s': 5, **changes}
        (keys / 'contract.yaml').write_text(yaml.safe_dump(content))
        return registry.load(kind, LoadOptions(str(keys / 'contract.yaml')))

    try:
        policy = load(tls_ca_file='ca.pem', **CLIENT)
        try:
            (prediction,) = policy.predict([blank_request('robot', policy.describe())])
            assert prediction.robot.shape == (4, 3)
        finally:
            policy.close()
        for wrong in ({'tls_ca_file': 'other.pem', **CLIENT}, {'tls_ca_file': 'ca.pem'}):
            with pytest.raises(PeerUnavailable, match=f'{kind} server {SCHEMES[kind]}://'):
                load(**wrong)
        with pytest.raises(PolicyError, match=r'the TLS files of .* cannot be used'):
            load(tls_ca_file='none.pem')
    finally:
        peer.stop()
