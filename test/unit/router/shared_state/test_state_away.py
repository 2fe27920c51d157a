# SPDX-License-Identifier: Apache-2.0
"""A state that is away: a start waits for it, routing continues, and no rollout advances."""

from __future__ import annotations

from dataclasses import replace
import threading
import time

import psycopg
import pytest
from support.postgres.server import postgres_server
from support.router.contexts import make_context
from support.router.site_rig import Site
from support.router.store_rig import site_store
from support.waiting import wait_until

from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shared_state import opening
from lerobot_serve.router.storage import follower, postgres_store
from lerobot_serve.router.storage import follower as following
from lerobot_serve.router.storage import postgres as tables
from lerobot_serve.router.storage.postgres_store import is_away
from lerobot_serve.router.storage.records import Batch, StoreContent
from lerobot_serve.router.storage.store import StoreAway, StoreRefused, StoreUnwritable
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
LIMIT_S = 60.0


@pytest.fixture
def own_server():
    """A server that a test may stop."""
    with postgres_server() as running:
        yield running


@pytest.fixture
def site(tmp_path, own_server):
    made = Site(tmp_path, own_server.new_database())
    yield made
    own_server.resume()
    made.close()


@pytest.mark.slow
def test_routing_goes_on_and_everything_is_reconciled(site, own_server, monkeypatch):
    monkeypatch.setattr(following, 'AWAY_S', 0.05)
    first, second = site.start(), site.start()
    site.step(2)
    own_server.stop()
    time.sleep(0.1)
    assert first.place('one') in 'ab'
    second.place('two')
    site.step()
    for router in site.routers:
        assert 'cannot be reached' in router.core.storage_problem
        assert not router.core.shared.leads
    text = first.command(R.DRAIN, 'b', 'repair')
    assert 'NOT DURABLE' in text
    assert 'repair' in first.slots['b'].text
    site.step()
    assert 'repair' in first.slots['b'].text
    own_server.start()
    monkeypatch.setattr(following, 'AWAY_S', 60.0)
    site.step(3)
    assert 'repair' in second.slots['b'].text
    assert second.core.table.placements.find('one')
    assert first.core.table.placements.find('two')
    assert [router.core.storage_problem for router in site.routers] == ['', '']
    assert sum(router.core.shared.leads for router in site.routers) == 1


@pytest.mark.slow
def test_of_two_decisions_meanwhile_the_one_that_was_stored_holds(site, own_server):
    first, second = site.start(), site.start()
    site.step(2)
    own_server.stop()
    first.set_live(split_percent=80)
    own_server.start()
    # connected again
    second.step()
    second.step()
    second.set_live(split_percent=20)
    site.step(3)
    assert {router.core.parameters.split_percent for router in site.routers} == {20}
    assert any('by another router since' in line for line in first.told)


@pytest.mark.slow
def test_a_drain_meanwhile_holds_in_any_case(site, own_server):
    first, second = site.start(), site.start()
    second.command(R.DRAIN, 'b', 'an earlier one')
    site.step(2)
    own_server.stop()
    first.command(R.DRAIN, 'b', 'repair')
    own_server.start()
    second.step()
    second.step()
    second.command(R.RESTORE, 'b')
    site.step(3)
    assert all('repair' in router.slots['b'].text for router in site.routers)


@pytest.mark.slow
def test_a_backlog_is_written_in_parts_and_events_once(site, own_server, monkeypatch):
    monkeypatch.setattr(postgres_store, 'SLICE', 100)
    first, second = site.start(), site.start()
    site.step(2)
    own_server.stop()
    for number in range(950):
        first.place(f'episode {number}')
    for number in range(250):
        first.core.writer.record_episode((f'episode {number}', 'begun', 'candidate'))
    assert not first.core.writer.flush()
    own_server.start()
    write, answers = first.core.writer.store._write_slice, iter([False, True, False])

    def lose_an_answer(connection, batch):
        kept = list(batch.episodes)
        write(connection, batch)
        if next(answers, False):
            batch.episodes[:] = kept
            raise StoreUnwritable('the answer was lost')

    monkeypatch.setattr(first.core.writer.store, '_write_slice', lose_an_answer)
    assert not first.core.writer.flush()
    assert first.core.writer.flush()
    with psycopg.connect(site.url) as connection:
        count = 'SELECT count(*), count(DISTINCT episode) FROM lerobot_serve_default.'
        assert connection.execute(f'{count}episodes').fetchone() == (250, 250)
        assert connection.execute(f'{count}placements').fetchone() == (950, 950)
    site.step(2)
    assert second.core.table.placements.find('episode 949')


@pytest.mark.slow
def test_a_decision_waits_three_seconds_for_a_state_that_stands_still(
    site, own_server, monkeypatch
):
    monkeypatch.setattr(following, 'AWAY_S', 1.0)
    router = site.start()
    site.step(2)
    threads = [
        threading.Thread(target=router.core.writer.run, args=(stop := threading.Event(),)),
        threading.Thread(target=router.core.follower.run, args=(stop,)),
    ]
    for thread in threads:
        thread.start()
    try:
        own_server.pause()
        begun_s = time.monotonic()
        assert 'did not respond within 3 s' in router.core.decisions.drain(
            router.slots['a'], 'repair', at_once=False
        )
        assert time.monotonic() - begun_s < LIMIT_S
        assert router.slots['a'].drain
        wait_until(lambda: router.core.follower.is_away, 'it counts as away', LIMIT_S)
        own_server.resume()
        wait_until(lambda: not router.core.follower.is_away, 'it is back', LIMIT_S)
        wait_until(lambda: not router.core.writer.has_unwritten(('drain', 'a')), 'it is written')
        own_server.pause()
    finally:
        # threads end also while the server does not answer
        stop.set()
        router.core.writer.wake()
        router.core.follower.wake()
        threads[1].join(LIMIT_S)
        is_ended = not threads[1].is_alive()
        own_server.resume()
        threads[0].join(LIMIT_S)
    assert is_ended


@pytest.mark.slow
def test_a_write_that_is_not_answered_ends(site, own_server):
    router = site.start()
    site.step()
    own_server.pause()
    router.place('one')
    assert not router.core.writer.flush()
    assert not router.core.follower.look()
    own_server.resume()
    site.step(2)
    assert site.start().core.table.placements.find('one')


@pytest.mark.slow
def test_a_router_that_leads_and_stands_still_loses_the_lead(site, own_server, monkeypatch):
    monkeypatch.setattr(following, 'STUCK_S', 0.2)
    first, second = site.start(), site.start()
    site.step(2)
    assert first.core.shared.leads
    wait_until(lambda: second.step() or second.core.shared.leads, 'another one leads', LIMIT_S)
    first.step()
    assert not first.core.shared.leads
    first.step()
    assert [r.core.shared.leads for r in site.routers] == [False, True]


@pytest.mark.slow
def test_a_router_that_shows_nothing_leaves_the_lead(site, monkeypatch):
    first, second = site.start(), site.start()
    site.step(2)
    monkeypatch.setattr(following, 'IDLE_S', -1.0)
    first.core.follower.look()
    monkeypatch.setattr(following, 'IDLE_S', 60.0)
    second.step()
    assert second.core.shared.leads


class TestOpening:
    @pytest.mark.slow
    def test_a_server_that_is_not_there_is_refused_with_a_remedy(self, url, server):
        wrong = url.replace(f':{server.port}/', ':1/')
        with pytest.raises(StoreAway, match=r'cannot be read: .*start or repair the server'):
            site_store(wrong)

    def test_a_database_that_is_not_there_is_refused(self, url):
        with pytest.raises(StoreRefused, match='does not exist') as refused:
            site_store(f'{url}x')
        assert not isinstance(refused.value, StoreAway)

    def test_a_schema_that_another_version_migrates_meanwhile_is_not_written(self, url):
        store = site_store(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute('UPDATE lerobot_serve_default.store SET version = 99')
        with pytest.raises(StoreUnwritable, match='restart this one with that version'):
            store.write(Batch({('drain', 'a'): {'text': '', 'now': False}}))
        assert 'another version' in store.failure
        store.close()

    def test_a_migration_that_is_interrupted_leaves_nothing(self, url, monkeypatch):
        whole = tables.MIGRATIONS
        monkeypatch.setattr(tables, 'MIGRATIONS', ((*whole[0][:3], 'SELECT pg_sleep(60)'),))
        opened = threading.Thread(target=self.refused, args=(url,))
        opened.start()
        with psycopg.connect(url, autocommit=True) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            pids = wait_until(lambda: connection.execute(query).fetchall(), 'it migrates')
            connection.execute('SELECT pg_terminate_backend(%s)', pids[0])
        opened.join(LIMIT_S)
        assert not opened.is_alive()
        monkeypatch.setattr(tables, 'MIGRATIONS', whole)
        site_store(url).close()

    def refused(self, url: str) -> None:
        with pytest.raises(StoreRefused):
            site_store(url)

    def test_two_routers_that_start_at_once_make_one_schema(self, url):
        stores, gate = [], threading.Barrier(4)

        def start() -> None:
            gate.wait()
            stores.append(site_store(url))

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert len(stores) == 4
        for store in stores:
            store.close()


SAID = 'connection to server at "10.0.0.9", port 5432 failed: '


@pytest.mark.parametrize(
    ('text', 'may_come'),
    [
        ('Connection refused', True),
        ('timeout expired', True),
        ('could not translate host name "db" to address: Name or service not known', True),
        ('server closed the connection unexpectedly', True),
        ('session is read-only', True),
        ('FATAL:  the database system is starting up', True),
        ('FATAL:  the database system is shutting down', True),
        ('FATAL:  the database system is in recovery mode', True),
        ('FATAL:  sorry, too many clients already', True),
        ('FATAL:  password authentication failed for user "router"', False),
        ('FATAL:  database "fleet" does not exist', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.2"', False),
        ('SSL error: certificate verify failed', False),
        ('server does not support SSL, but SSL was required', False),
    ],
)
def test_which_failures_may_end_by_themselves(text: str, may_come: bool):
    assert is_away(psycopg.OperationalError(f'{SAID}{text}')) is may_come


def test_another_kind_of_error_is_none():
    assert not is_away(psycopg.ProgrammingError('syntax error'))


class Clock:
    now_ns = 0


class TestWaiting:
    """Open the state of a server that answers with each of these in turn."""

    def opened(self, monkeypatch, tmp_path, answers: list[Exception | None], waits: int):
        reasons: list[str] = []
        left = [False] * waits + [True] * 9

        def wait(why: str, seconds: float) -> bool:
            reasons.append(why)
            return left.pop(0)

        context = replace(make_context(Clock()), wait=wait)

        class Played:
            """A store that is there or not."""

            is_shared, name, content, other_sites = True, 'the state', StoreContent(), ()

            def __init__(self, *_: object) -> None:
                if error := answers.pop(0):
                    raise error

        monkeypatch.setattr(postgres_store, 'PostgresStore', Played)
        monkeypatch.setattr(follower, 'StateFollower', lambda *_: 'follower')
        parameters = RouterParameters(slot_prod=('/s',), state_url='postgresql://db/fleet')
        return opening.open_state(parameters, tmp_path, context), reasons

    def test_it_says_why_and_goes_on_when_it_is_there(self, monkeypatch, tmp_path):
        answers = [StoreAway('refused'), StoreAway('starts'), None]
        found, reasons = self.opened(monkeypatch, tmp_path, answers, 9)
        assert (found[0].name, found[1]) == ('the state', 'follower')
        assert reasons == [f'refused; {opening.WAITS}', f'starts; {opening.WAITS}']

    def test_it_ends_when_it_is_asked_to(self, monkeypatch, tmp_path):
        with pytest.raises(StoreAway):
            self.opened(monkeypatch, tmp_path, [StoreAway('refused')] * 3, 2)

    def test_a_mistake_ends_it_at_once(self, monkeypatch, tmp_path):
        with pytest.raises(StoreRefused, match='no such database'):
            self.opened(monkeypatch, tmp_path, [StoreRefused('no such database')], 9)
