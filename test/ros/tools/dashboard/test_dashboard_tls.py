# SPDX-License-Identifier: Apache-2.0
"""A dashboard on all addresses with a certificate: read and acted on over TLS alone."""

from __future__ import annotations

import http.client
import json
import ssl

import pytest

pytest.importorskip('cryptography', reason='certificates are made with cryptography')

from lerobot_serve.access.token_file import open_tokens
from lerobot_serve.tools.keys.certificates import make_authority, make_certificate

LIMIT_S = 30.0


@pytest.fixture
def dashboard(tmp_path, start_dashboard):
    authority = make_authority('lab', 30)
    pair = make_certificate(authority, 'page', 20, hosts=['127.0.0.1'], may_listen=True)
    for name, data in (
        ('authority.pem', authority.certificate),
        ('page.pem', pair.certificate),
        ('page.key', pair.key),
    ):
        (tmp_path / name).write_bytes(data)
    return start_dashboard(
        address='0.0.0.0',
        tls_certificate=tmp_path / 'page.pem',
        tls_key=tmp_path / 'page.key',
    )


def ask(port: int, folder, method: str, path: str, body=None, **headers: str):
    trusted = ssl.create_default_context(cafile=folder / 'authority.pem')
    connection = http.client.HTTPSConnection('127.0.0.1', port, timeout=LIMIT_S, context=trusted)
    try:
        connection.request(method, path, body and json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_one_reads_and_acts_over_tls(dashboard, tmp_path):
    status, page = ask(dashboard.port, tmp_path, 'GET', '/')
    assert status == 200 and b'<!doctype html>' in page[:200].lower()
    tokens = open_tokens(tmp_path / 'tokens')
    headers = {
        'Content-Type': 'application/json',
        'Origin': f'https://127.0.0.1:{dashboard.port}',
        'Authorization': f'Bearer {tokens.token_of(tokens.names[0])}',
    }
    body = {'verb': 'drain', 'target': '/policy_router', 'slot': 'b'}
    status, reply = ask(dashboard.port, tmp_path, 'POST', '/api/commands', body, **headers)
    # let in, and there is no such router
    assert status == 409 and b'no router' in reply
    # a page of another origin, as one over plain HTTP is
    headers['Origin'] = f'http://127.0.0.1:{dashboard.port}'
    status, reply = ask(dashboard.port, tmp_path, 'POST', '/api/commands', body, **headers)
    assert status == 403


def test_plain_http_gets_nothing(dashboard):
    connection = http.client.HTTPConnection('127.0.0.1', dashboard.port, timeout=LIMIT_S)
    connection.request('GET', '/healthz')
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    connection.close()


def test_a_certificate_of_another_authority_is_seen(dashboard, tmp_path):
    (tmp_path / 'authority.pem').write_bytes(make_authority('other', 30).certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(dashboard.port, tmp_path, 'GET', '/healthz')
