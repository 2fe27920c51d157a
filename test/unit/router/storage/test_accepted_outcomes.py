# SPDX-License-Identifier: Apache-2.0
"""An outcome that was accepted counts in the router that starts next, whenever this one dies."""

from __future__ import annotations

from contextlib import contextmanager
import random
import threading

import pytest
from support.router.episodes import accept, FAILURE, request, SUCCESS
from support.router.restarting import Routers
from support.router.router_core_rig import RoutingRig

from lerobot_serve.router.canary.facts import ARM_OF_SLOT, ArmCounts
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.records import Batch, counted_until, stored_placement
from lerobot_serve.router.storage.sqlite_store import SqliteStore
from lerobot_serve.router.storage.writer import DECISION_LIMIT_S, StoreWriter
from lerobot_serve_interfaces.srv import ControlSlot

PLAN = {'canary_plan': ('50:1000', '100')}
NAMES = {
    slot: [n for n in map('episode {}'.format, range(600)) if (bucket(n) < 50) == (slot == 'a')]
    for slot in ('a', 'b')
}


@pytest.fixture
def routers(tmp_path):
    made = Routers(tmp_path / 'state')
    made.start()
    made.set_live(**PLAN)
    for _ in range(3):
        made.poll()
    # the split of the plan, as the node sets it
    assert made.rig.splits == [50]
    yield made
    if made.rig:
        made.rig.close()


def restarted(routers: Routers) -> dict[str, ArmCounts]:
    """Kill the router, start the next one, and return what its canary has counted."""
    routers.kill()
    routers.start()
    routers.poll()
    return routers.rig.core.canary.canary.record.trial.totals


def test_each_accepted_outcome_counts_with_the_begin_of_its_episode(routers):
    draw = random.Random(44)
    known = {arm: ArmCounts() for arm in ARM_OF_SLOT.values()}
    for name in [*NAMES['a'][:40], *NAMES['b'][:40]]:
        arm = ARM_OF_SLOT[request(routers.rig, name)]
        outcome = draw.choice((SUCCESS, FAILURE))
        assert accept(routers.rig, name, outcome) == ''
        known[arm].count('begun')
        known[arm].count('success' if outcome == SUCCESS else 'failure')
        if draw.random() < 0.3:
            routers.poll()
        if draw.random() < 0.2:
            # so soon that no snapshot has it
            assert restarted(routers) == known
    assert restarted(routers) == known


def test_the_same_again_is_a_repetition_and_another_one_is_refused(routers):
    name, moved = NAMES['b'][0], NAMES['b'][1]
    for each in (name, moved):
        request(routers.rig, each)
    routers.rig.command(ControlSlot.Request.DRAIN, 'b', 'repair', at_once=True)
    assert request(routers.rig, moved) == 'a'
    assert accept(routers.rig, name, FAILURE) == ''
    restarted(routers)
    receipt = routers.rig.core.record_outcome(name, FAILURE)
    assert (receipt.is_accepted, receipt.is_new) == (True, False)
    assert 'already counts as failure' in accept(routers.rig, name, SUCCESS)
    # the success of another policy is none of the candidate
    assert 'it counts as moved' in routers.rig.core.record_outcome(moved, SUCCESS).text
    routers.poll()
    candidate = routers.rig.core.canary.canary.record.trial.totals['candidate']
    assert (candidate.failure, candidate.moved, candidate.success) == (1, 1, 0)


def test_an_episode_that_is_placed_has_begun_also_where_the_store_is_written_between(
    routers, monkeypatch
):
    """
    A placement without its begin would be known after the restart, and its failure would count for
    nothing.
    """
    writer, name = routers.rig.core.writer, NAMES['b'][0]
    place = writer.place

    def written_at_once(*arguments: object) -> None:
        place(*arguments)
        thread = threading.Thread(target=writer.flush)
        thread.start()
        # it has either written by now, or waits for the rest
        thread.join(0.2)
        threads.append(thread)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(writer, 'place', written_at_once)
    request(routers.rig, name)
    for thread in threads:
        thread.join()
    known = restarted(routers)
    assert known['candidate'].begun == 1
    assert request(routers.rig, name) == 'b'
    assert accept(routers.rig, name, FAILURE) == ''
    routers.poll()
    assert routers.rig.core.canary.canary.record.trial.totals['candidate'].failure == 1


def test_an_open_episode_of_the_last_moment_becomes_unreported_in_time(routers):
    request(routers.rig, NAMES['b'][0])
    routers.rig.core.writer.flush()
    restarted(routers)
    routers.rig.now_ns += 25 * 3600 * 10**9
    routers.rig.core.expire_episodes()
    routers.poll()
    assert routers.rig.core.canary.canary.record.trial.totals['candidate'].unreported == 1


def test_an_episode_of_which_only_the_placement_is_known_may_be_reported(tmp_path):
    """A router of an older version has stored nothing else."""
    name = NAMES['b'][0]
    store = SqliteStore(tmp_path, 10, 'now')
    store.write(Batch(placements={name: stored_placement(bucket(name), 'b', 50, False, '')}))
    store.close()
    rig = RoutingRig(tmp_path)
    assert accept(rig, name, FAILURE) == ''
    assert 'no episode' in accept(rig, NAMES['b'][1], FAILURE)
    rig.close()


def test_what_a_snapshot_has_counted_is_not_counted_again(routers):
    for name in NAMES['b'][:5]:
        request(routers.rig, name)
        assert accept(routers.rig, name, FAILURE) == ''
    routers.poll()
    # a decision stores the counts
    routers.rig.command(ControlSlot.Request.CANARY_PAUSE, '', 'lunch')
    stored = routers.rig.core.decisions.canary_snapshot
    assert counted_until(stored) == 10
    for _ in range(2):
        assert restarted(routers)['candidate'] == ArmCounts(begun=5, failure=5)


def test_events_of_forgotten_episodes_leave_the_file(tmp_path):
    store = SqliteStore(tmp_path, 10, 'now')
    writer = StoreWriter(store, [].append, [].append)
    for number in range(100):
        writer.record_episode((f'episode {number}', 'begun', 'candidate'))
    writer.enqueue({('canary', ''): {'shared': {'counted_until': 90}}})
    writer.close()
    numbers = [number for number, _ in SqliteStore(tmp_path, 10, 'now').content.episodes]
    # what is not counted stays, however old
    assert numbers == list(range(71, 101))


# what is not on disk is not accepted


@contextmanager
def running(writer: StoreWriter):
    """Run the writer's thread."""
    stop = threading.Event()
    thread = threading.Thread(target=writer.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        writer.wake()
        thread.join(10.0)
        assert not thread.is_alive()


def full(_: object) -> None:
    raise OSError(28, 'No space left on device')


def test_a_full_disk_is_not_accepted_and_the_repetition_is_as_soon_as_there_is_room(
    routers, monkeypatch
):
    core, name = routers.rig.core, NAMES['b'][0]
    request(routers.rig, name)
    with monkeypatch.context() as patch:
        patch.setattr(core.writer.store, 'write', full)
        assert 'No space left' in accept(routers.rig, name, FAILURE)
        assert 'No space left' in accept(routers.rig, name, FAILURE)
    assert accept(routers.rig, name, FAILURE) == ''
    assert restarted(routers)['candidate'].failure == 1


def test_a_disk_that_hangs_is_said_in_time_and_costs_no_thread(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path, 10, 'now')
    writer, write = StoreWriter(store, [].append, [].append), store.write
    hangs, goes_on = threading.Event(), threading.Event()
    said: list[str] = []

    def stuck(batch: object) -> None:
        hangs.set()
        assert goes_on.wait(10.0)
        write(batch)

    monkeypatch.setattr(store, 'write', stuck)
    clock = [100.0]
    monkeypatch.setattr('time.monotonic', lambda: clock[0])
    with running(writer):
        writer.record_episode(('one', 'begun', 'candidate'))
        assert hangs.wait(10.0)
        writer.when_durable(said.append)
        writer.expire()
        assert said == []
        clock[0] += DECISION_LIMIT_S + 0.1
        writer.expire()
        assert len(said) == 1 and 'did not respond' in said[0]
        goes_on.set()
    # once
    assert len(said) == 1
    writer.close()


def test_many_wait_for_one_write(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path, 10, 'now')
    writer, write = StoreWriter(store, [].append, [].append), store.write
    writes: list[int] = []
    first, goes_on, all_said = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []

    def slow(batch) -> None:
        writes.append(len(batch.episodes))
        first.set()
        assert goes_on.wait(10.0)
        write(batch)

    def on_written(error: str) -> None:
        said.append(error)
        if len(said) == 51:
            all_said.set()

    monkeypatch.setattr(store, 'write', slow)
    with running(writer):
        for number in range(51):
            writer.record_episode((f'episode {number}', 'failure', 'candidate'))
            writer.when_durable(on_written)
            assert first.wait(10.0)
        goes_on.set()
        assert all_said.wait(10.0)
    assert said == [''] * 51
    assert len(writes) <= 3
    writer.close()
