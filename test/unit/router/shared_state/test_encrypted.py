# SPDX-License-Identifier: Apache-2.0
"""A database that takes only encrypted connections, with a password."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest
from support.gateway.certificates import certificate_files
from support.postgres.server import postgres_server
from support.router.site_rig import Site
from support.router.store_rig import site_store

from lerobot_serve.router.storage.store import StoreRefused

PASSWORD = 'correct horse'


@pytest.fixture(scope='module')
def server(tmp_path_factory):
    """A server whose certificate is signed by `authority.pem`."""
    folder = tmp_path_factory.mktemp('authority')
    files = certificate_files(folder)
    with postgres_server() as running:
        running.execute(f"ALTER USER router PASSWORD '{PASSWORD}'")
        for source in files[1:]:
            own = Path(shutil.copy(source, running.folder))
            own.chmod(0o600)
            running.give(own)
        running.settings = {
            'ssl': 'on',
            'ssl_cert_file': running.folder / 'certificate.pem',
            'ssl_key_file': running.folder / 'key.pem',
        }
        (running.data / 'pg_hba.conf').write_text(
            'local all all trust\nhostssl all all all scram-sha-256\n'
        )
        running.stop()
        running.start()
        running.authority = files[0]
        yield running


@pytest.fixture
def url(server):
    return server.new_database()


@pytest.fixture(autouse=True)
def password(tmp_path, monkeypatch):
    file = tmp_path / 'password'
    file.write_text(f'127.0.0.1:*:*:router:{PASSWORD}\n')
    file.chmod(0o600)
    monkeypatch.setenv('PGPASSFILE', str(file))
    return file


@pytest.mark.slow
def test_two_routers_share_an_encrypted_state(tmp_path, server, url):
    site = Site(tmp_path, f'{url}?sslmode=verify-full&sslrootcert={server.authority}')
    try:
        first, second = site.start(), site.start()
        site.step(2)
        first.set_live(split_percent=80)
        site.step()
        assert second.core.parameters.split_percent == 80
        for connection in (first.core.writer.store._connection, first.core.follower._connection):
            assert connection.pgconn.ssl_in_use
    finally:
        site.close()


@pytest.mark.parametrize(
    ('options', 'why'),
    [
        ('sslmode=disable', 'no pg_hba.conf entry'),
        ('sslmode=verify-full&sslrootcert={other}', 'certificate verify failed'),
        ('sslmode=verify-full&sslrootcert=/nowhere', 'root certificate file "/nowhere"'),
        ('sslmode=verify-full&sslrootcert={authority}&host=localhost', 'does not match host name'),
    ],
)
def test_a_connection_that_is_not_safe_is_refused(tmp_path, server, url, options, why):
    other, _, _ = certificate_files(tmp_path)
    options = options.format(other=other, authority=server.authority)
    with pytest.raises(StoreRefused, match=why) as refused:
        site_store(f'{url}?{options}')
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ('text', 'mode', 'why'),
    [
        ('127.0.0.1:*:*:router:battery staple\n', 0o600, 'password authentication failed'),
        ('other:*:*:router:correct horse\n', 0o600, 'no password supplied'),
        # libpq ignores a file that others may read
        ('127.0.0.1:*:*:router:correct horse\n', 0o644, 'no password supplied'),
    ],
)
def test_a_wrong_password_is_refused_and_not_repeated(password, server, url, text, mode, why):
    password.write_text(text)
    password.chmod(mode)
    with pytest.raises(StoreRefused, match=why) as refused:
        site_store(f'{url}?sslmode=verify-full&sslrootcert={server.authority}')
    assert not any(each in str(refused.value) for each in ('horse', 'staple'))
