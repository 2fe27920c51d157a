# SPDX-License-Identifier: Apache-2.0
"""Servers that are killed, hang, come back or answer nonsense, behind a router."""

from __future__ import annotations

from pathlib import Path
import shutil

from msgspec.structs import replace
import pytest
from support.nodes.small_client import SmallClient
from support.nodes.zenoh_links import both_links

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.storage.sqlite_store import SqliteStore
from lerobot_serve_interfaces.msg import ReplicaState

pytestmark = pytest.mark.slow


def answered(client: SmallClient, episode_id: str, count: int = 1, **changes: object) -> list:
    """Return chunks, each of which came and holds actions."""
    chunks = [client.round_trip(episode_id=episode_id, **changes) for _ in range(count)]
    assert [chunk.status for chunk in chunks] == [Status.OK] * count
    return chunks


def replica(rig, slot: str, server: str) -> ReplicaState:
    return next(r for r in rig.slot(slot).replicas if r.server == f'/{server}/policy_server')


@pytest.fixture
def pair(router_rig):
    """Slot a with two replicas of one policy, slot b with one."""
    router_rig.server('a1', 'a', policy='a')
    router_rig.server('a2', 'a', policy='a')
    router_rig.server('b', 'b')
    router_rig.router(slot_a=['a1', 'a2'], slot_b=['b'])
    router_rig.wait_for_health('healthy')
    return router_rig


def test_a_killed_replica_costs_no_answer_and_the_slot_stays(pair):
    client, episode = pair.robot(), pair.episode('a')
    answered(client, episode, 25)
    first = pair.wait_for_decision(episode).server.split('/')[1]
    pair.kill(first)
    chunks = answered(client, episode, 25)
    assert {chunk.slot for chunk in chunks} == {'a'}
    assert not any(chunk.header.flags & Flag.POLICY_CHANGED for chunk in chunks)
    pair.wait(lambda: replica(pair, 'a', first).state != ReplicaState.READY, 'it is given up')
    assert pair.state.health == 'healthy'


def test_a_replica_that_hangs_is_left_and_used_again_when_it_goes_on(pair):
    client, episode = pair.robot(), pair.episode('a')
    answered(client, episode, 25)
    first = pair.wait_for_decision(episode).server.split('/')[1]
    pair.hang(first)
    answered(client, episode, 10)
    pair.wait(
        lambda: (
            answered(client, episode) and replica(pair, 'a', first).state == ReplicaState.UNHEALTHY
        ),
        'it is suspect',
    )
    pair.go_on(first)
    pair.wait(
        lambda: (
            answered(client, episode) and replica(pair, 'a', first).state == ReplicaState.READY
        ),
        'it is ready again',
    )
    assert replica(pair, 'a', first).probes > 0


@both_links
def test_an_episode_leaves_a_dead_slot_and_its_next_chunk_says_so(router_rig):
    router_rig.slots()
    client, episode = router_rig.robot(), router_rig.episode('b')
    answered(client, episode, 3)
    router_rig.kill('b')
    (chunk,) = answered(client, episode)
    assert chunk.slot == 'a'
    assert chunk.header.flags & Flag.POLICY_CHANGED
    decision = router_rig.wait_for_decision(episode, moved=True)
    assert decision.slot == 'a'
    assert 'slot b cannot reply' in decision.reason
    (chunk,) = answered(client, episode)
    assert (chunk.slot, chunk.header.flags & Flag.POLICY_CHANGED) == ('a', 0)


@both_links
def test_robots_in_the_good_slot_see_nothing_of_the_bad_one(router_rig):
    router_rig.slots(reply_timeout_s=5.0)
    client = router_rig.robot()
    router_rig.hang('b')
    for number in range(10):
        chunks = answered(client, router_rig.episode('a', salt=number), 3)
        assert {(chunk.slot, chunk.header.flags) for chunk in chunks} == {('a', 0)}
    assert router_rig.slot('a').requests_failed == 0


@both_links
def test_failures_in_a_row_drain_a_slot_and_clean_trials_bring_it_back(router_rig):
    router_rig.slots(slot_unhealthy_threshold=3)
    client, episode = router_rig.robot(), router_rig.episode('b')
    for _ in range(2):
        chunk = client.round_trip(episode_id=episode, task='nan')
        assert (chunk.status, chunk.slot) == (Status.NOT_FINITE, 'b')
    # the third drains slot b, and slot a is asked at once
    assert client.round_trip(episode_id=episode, task='nan').slot == 'a'
    router_rig.wait_for_health('slot_b_drained')
    assert 'not_finite' in router_rig.slot('b').text
    assert 'is not eligible' in router_rig.set(split_percent=20)
    assert router_rig.get('split_percent') == 50
    # the first chunk with actions since then tells of the move
    (chunk,) = answered(client, episode)
    assert (chunk.slot, chunk.header.flags & Flag.POLICY_CHANGED) == ('a', Flag.POLICY_CHANGED)
    (chunk,) = answered(client, router_rig.episode('b', salt='new'))
    assert chunk.slot == 'a'
    # robots go on in slot a, copies of what they ask show that b is well
    router_rig.wait(
        lambda: answered(client, episode) and router_rig.state.health == 'healthy',
        'slot b is back',
    )
    (chunk,) = answered(client, router_rig.episode('b', salt='newest'))
    assert chunk.slot == 'b'


def test_a_slot_that_is_down_is_done_without_until_it_comes(router_rig):
    router_rig.server('a', 'a')
    router_rig.router(slot_a=['a'], slot_b=['b'], discovery_timeout_s=0.0)
    router_rig.wait_for_health('slot_b_drained')
    client = router_rig.robot()
    (chunk,) = answered(client, router_rig.episode('b'))
    assert chunk.slot == 'a'
    router_rig.server('b', 'b')
    router_rig.wait_for_health('healthy')

    def is_in_b() -> bool:
        number = len(router_rig.watch.decisions)
        (chunk,) = answered(client, router_rig.episode('b', salt=number))
        return chunk.slot == 'b'

    router_rig.wait(is_in_b, 'new episodes go to b')


def written(folder: Path, to: Path) -> set[str]:
    """Return the placements that a router which is killed now leaves behind."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    store = SqliteStore(to, 1000, 'now')
    store.close()
    return set(store.content.placements)


@both_links
def test_placements_survive_the_router(router_rig, tmp_path):
    folder = tmp_path / 'kept'
    router_rig.slots(state_folder=folder)
    client = router_rig.robot()
    names = [f'episode-{number}' for number in range(8)]
    before = [answered(client, name)[0].slot for name in names]
    assert set(before) == {'a', 'b'}
    # not waited for by requests: those of the last moment are lost with the process
    router_rig.wait(lambda: written(folder, tmp_path / 'copy') == {*names}, 'they are written')
    router_rig.kill('router')
    router_rig.router(slot_a=['a'], slot_b=['b'], split_percent=100, state_folder=folder)
    client.ask = replace(client.ask, session_epoch=2)
    client.open()
    assert [answered(client, name)[0].slot for name in names] == before
    assert {answered(client, f'new-{n}')[0].slot for n in range(4)} == {'a'}
