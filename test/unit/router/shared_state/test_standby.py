# SPDX-License-Identifier: Apache-2.0
"""A database with a standby that follows it: one dies, the other takes over."""

from __future__ import annotations

import pytest
from support.postgres.server import postgres_server, standby_server
from support.router.site_rig import Site
from support.router.store_rig import site_store
from support.waiting import wait_until

from lerobot_serve.router.storage import follower as following
from lerobot_serve.router.storage.store import StoreRefused
from lerobot_serve_interfaces.srv import ControlSlot

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
