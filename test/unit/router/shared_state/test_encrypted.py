# SPDX-License-Identifier: Apache-2.0
"""Databases of a site: encrypted with a password, and with a standby that takes over."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest
from support.gateway.certificates import certificate_files
from support.postgres.server import postgres_server, standby_server
from support.router.site_rig import Site
from support.router.store_rig import site_store
from support.waiting import wait_until

from lerobot_serve.router.storage import follower as following
from lerobot_serve.router.storage.store import StoreRefused
from lerobot_serve_interfaces.srv import ControlSlot

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


R = ControlSlot.Request
LIMIT_S = 60.0


@pytest.fixture
def primary():
    with postgres_server() as running:
        yield running


@pytest.fixture
def standby(primary):
    with standby_server(primary) as running:
        # what is confirmed is at both
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        primary.execute('SELECT pg_reload_conf()')
        yield running


@pytest.fixture
def site(tmp_path, primary, standby):
    url = primary.new_database()
    made = Site(tmp_path, url.replace('/fleet', f',127.0.0.1:{standby.port}/fleet'))
    yield made
    made.close()


@pytest.mark.slow
def test_the_standby_takes_over_with_all_decisions(site, primary, standby, monkeypatch):
    monkeypatch.setattr(following, 'AWAY_S', 0.05)
    first, second = site.start(), site.start()
    first.command(R.SET_SPLIT, split_percent=80)
    second.command(R.DRAIN, 'b', 'repair')
    first.place('before')
    site.step(3)
    primary.kill()
    # routing continues, and no router leads
    wait_until(lambda: second.core.follower.is_away, 'the state is away', LIMIT_S)
    site.step()
    assert 'cannot be reached' in first.core.storage_problem
    second.place('meanwhile')
    assert 'NOT DURABLE' in second.command(R.SET_SPLIT, split_percent=100)
    monkeypatch.setattr(following, 'AWAY_S', 60.0)
    standby.execute('SELECT pg_promote()')
    # the first write of a router finds its connection lost
    site.step(6)
    assert [router.core.storage_problem for router in site.routers] == ['', '']
    assert sum(router.core.shared.leads for router in site.routers) == 1
    third = site.start()
    site.step(2)
    for router in (first, second, third):
        assert router.core.parameters.split_percent == 100
        assert 'repair' in router.slots['b'].text
        assert router.core.table.placements.find('before')
        assert router.core.table.placements.find('meanwhile')


@pytest.mark.slow
def test_a_standby_is_not_taken_for_the_database(primary, standby):
    url = primary.new_database()
    database = url.rpartition('/')[2]
    of_standby = standby.url(database)
    wait_until(lambda: standby.has_database(database), 'it is copied', LIMIT_S)
    with pytest.raises(StoreRefused, match=r'cannot be read: .*read-only'):
        site_store(of_standby)
    # whichever is named first
    both = of_standby.replace('/fleet', f',127.0.0.1:{primary.port}/fleet')
    site_store(both).close()
