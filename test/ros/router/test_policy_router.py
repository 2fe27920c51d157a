# SPDX-License-Identifier: Apache-2.0
"""A router before two slots, as robots meet it: nothing tells it from a policy server."""

from __future__ import annotations

import pytest
from support.nodes.small_client import SmallClient
from support.nodes.zenoh_links import every_link
from support.replacing import replace

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.records import ResetEpisodeRequest
from lerobot_serve.contract.schema import Status
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ActionChunk, ServerStatus
from lerobot_serve_interfaces.srv import GetStatus

ROUTER = '/policy_router'


@pytest.fixture
def slots(router_rig):
    router_rig.slots()
    return router_rig


@pytest.fixture
def client(slots) -> SmallClient:
    return slots.robot()


def slot_of(client: SmallClient, episode_id: str) -> str:
    chunk = client.round_trip(episode_id=episode_id)
    assert chunk.status == Status.OK
    assert chunk.policy.startswith('steered@')
    return chunk.slot


@every_link
def test_a_change_of_the_split_moves_new_episodes_only(client, slots):
    names = [f'old-{number}' for number in range(6)]
    before = [slot_of(client, name) for name in names]
    assert set(before) == {'a', 'b'}
    assert not slots.set(split_percent=0)
    assert [slot_of(client, name) for name in names] == before
    assert {slot_of(client, f'new-{number}') for number in range(6)} == {'b'}
    assert not slots.set(split_percent=100)
    assert {slot_of(client, f'newer-{number}') for number in range(6)} == {'a'}
    assert 'split_percent' in slots.set(split_percent=101)
    assert slot_of(client, 'after-the-refusal') == 'a'


def test_decisions_are_published_once_for_an_episode(client, slots):
    for _ in range(3):
        slot_of(client, 'ep_42')
    slot_of(client, 'another')
    slots.wait_for_decision('another')
    (decision,) = [each for each in slots.watch.decisions if each.episode_id == 'ep_42']
    assert (decision.bucket, decision.slot, decision.missing_episode_id) == (29, 'a', False)
    assert decision.policy.startswith('steered@')
    assert decision.server == '/a/policy_server'


def test_an_unknown_robot_gets_no_session_and_the_known_one_still_its_chunk(client, slots):
    refused: list[bytes] = []
    slots.node.create_subscription(
        ActionChunk, f'{ROUTER}/no_session', refused.append, qos.NO_SESSION, raw=True
    )
    slots.wait(lambda: slots.node.count_publishers(f'{ROUTER}/no_session'), 'the topic is there')
    old = client.observation()
    strangers = (
        client.observation(client_id='stranger'),
        replace(old, header=replace(old.header, session_epoch=9)),
    )

    def has_refused_both() -> bool:
        # the first ones may be sent before the topic is connected
        for each in strangers:
            client.send(wire_observation.encode(each))
        chunks = [wire_chunk.decode(raw) for raw in refused]
        return {(c.client_id, c.header.session_epoch) for c in chunks} == {
            ('stranger', strangers[0].header.session_epoch),
            ('tester', 9),
        }

    slots.wait(has_refused_both, 'both are refused')
    assert {wire_chunk.decode(raw).status for raw in refused} == {Status.NO_SESSION}
    assert client.round_trip().status == Status.OK
    slots.wait_for_drop('no_session', 2)


@every_link
def test_reset_and_close_reach_both_slots(client, slots):
    request = ResetEpisodeRequest('tester', 1, 1)
    assert client.reset(request).acknowledged
    for name in ('a', 'b'):
        steering = slots.steering(name)
        slots.wait(lambda steering=steering: steering.events('reset'), f'the reset of slot {name}')
    assert client.close().closed
    assert not client.close().closed
    slots.wait(lambda: slots.state.sessions == 0, 'no robot is left')


def test_what_it_says_of_itself_is_what_a_policy_server_says(client, slots):
    for _ in range(3):
        client.round_trip(episode_id=slots.episode('a'))

    def said() -> GetStatus.Response | None:
        reply = slots.ask(GetStatus, 'get_status', GetStatus.Request())
        return reply if reply.action_names else None

    # what the policies want is asked by a thread of its own, once they are there
    reply = slots.wait(said, 'it knows what its policies want')
    assert reply.status.state == ServerStatus.ACTIVE
    assert reply.status.policy_type == 'router'
    assert reply.status.active_sessions == 1
    assert (reply.status.requests, reply.status.chunks) == (3, 3)
    assert list(reply.action_names) == [f'joint_{i}.pos' for i in range(6)]
    assert reply.chunk_size == 30


def test_one_slot_called_prod_needs_no_split(router_rig):
    router_rig.server('one', 'prod')
    router_rig.router(slot_prod=['one'])
    router_rig.wait_for_health('healthy')
    assert slot_of(router_rig.robot(), 'episode-1') == 'prod'
    assert router_rig.wait_for_decision('episode-1').reason == 'single slot'
