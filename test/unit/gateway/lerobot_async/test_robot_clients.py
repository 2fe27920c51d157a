# SPDX-License-Identifier: Apache-2.0
"""What RobotClients get through the door: chunks with their times, each its own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.gateway.robot_client_rig import (
    instructions,
    JOINTS,
    observation,
    pieces,
    read_reply,
    robot_client_rig,
    soon,
    started_client,
)
from support.replacing import replace

from benchmarks.harness.peer_classes import pickled
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.lerobot_async.clients import REPEAT_AFTER_S

pytest.importorskip('torch')
pytestmark = pytest.mark.usefixtures('grpc_thread')


async def test_a_chunk_has_the_times_of_its_observation():
    async with started_client() as (rig, client):
        actions = await client.chunk(observation(7))
        (client_id, request), *_ = rig.upstream.requests
        assert client_id.startswith('gateway/lerobot/127.0.0.1:')
        assert (request.task, request.episode_start) == ('pick', True)
        assert list(request.images) == ['observation.images.front']
        assert request.state.tolist() == [0.0, 0.5, 1.0]
        assert [each.timestep for each in actions] == [7, 8, 9, 10]
        assert [each.timestamp for each in actions] == [107.0 + n / 30 for n in range(4)]
        assert actions[1].action.tolist() == [1.0, 1.5, 2.0]


async def test_a_client_that_waits_gets_the_chunk_at_once_and_is_told_who_predicted():
    async with started_client() as (rig, client):
        call = client.actions_call()
        await client.send(observation())
        assert len(read_reply(await call)) == 4
        told = dict(await call.trailing_metadata())
        assert told['lerobot-serve-fingerprint'] == 'fake@0123456789ab'
        assert told['lerobot-serve-slot'] == 'prod'
        ready = client.call('Ready')
        await ready
        assert dict(await ready.initial_metadata())['lerobot-serve-note'] == NO_CAGE
        assert [line for line in rig.log.lines if 'actions per chunk' in line and NO_CAGE in line]


async def test_two_clients_at_once_each_get_their_own_chunks():
    async with robot_client_rig() as rig:
        clients = [await rig.started() for _ in range(3)]
        for turn in range(3):
            await asyncio.gather(
                *(
                    client.send(observation(10 * turn, **dict.fromkeys(JOINTS, float(n))))
                    for n, client in enumerate(clients)
                )
            )
            chunks = await asyncio.gather(*(client.actions() for client in clients))
            assert [chunk[0].action.tolist() for chunk in chunks] == [[n] * 3 for n in range(3)]
            assert {chunk[0].timestep for chunk in chunks} == {10 * turn}
        assert rig.upstream.opened == 3
        assert not rig.refused


async def test_an_observation_of_many_pieces_is_put_together():
    async with started_client() as (rig, client):
        frame = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
        data = pickled(observation(front=frame))
        await client.send_pieces(pieces(data, 100_000))
        await client.actions()
        assert np.array_equal(
            rig.upstream.requests[0][1].images['observation.images.front'], frame
        )


async def test_only_the_newest_observation_is_predicted():
    async with started_client() as (rig, client):
        for timestep in range(3):
            await client.send(observation(timestep))
        assert (await client.actions())[0].timestep == 2
        assert len(rig.upstream.requests) == 1
        assert rig.refused == {'superseded': 2}


async def test_a_predicted_timestep_is_skipped_unless_it_must_go_or_its_chunk_was_lost():
    async with started_client(wait_s=0.01) as (rig, client):

        async def is_predicted(timestep: int, *, must_go: bool) -> bool:
            return bool(await client.chunk(observation(timestep, must_go=must_go)))

        assert await is_predicted(5, must_go=True)
        assert not await is_predicted(5, must_go=False)
        assert rig.refused == {'repeated_timestep': 1}
        assert await is_predicted(5, must_go=True)
        assert await is_predicted(6, must_go=False)
        assert not await is_predicted(6, must_go=False)
        # the robot still stands there: it never got the chunk
        rig.now_s += REPEAT_AFTER_S
        assert await is_predicted(6, must_go=False)


async def test_a_robot_that_barely_moves_is_served():
    """LeRobot's server skips observations whose joints are within 1 of the last ones."""
    async with started_client() as (rig, client):
        for timestep in range(5):
            moved = dict.fromkeys(JOINTS, 0.001 * timestep)
            first, *_ = await client.chunk(observation(timestep, must_go=False, **moved))
            assert first.timestep == timestep
        assert not rig.refused


async def test_a_failed_prediction_is_refused_and_its_timestep_is_served_again():
    async with started_client() as (rig, client):
        rig.upstream.fail_with = PredictionError(Status.NOT_FINITE, 'NaN in action 3')
        await client.send(observation(5))
        code, text = await client.refused(client.actions_call())
        assert (code.name, text) == ('INTERNAL', 'NaN in action 3')
        rig.upstream.fail_with = None
        # the client says must_go once only, until a chunk comes
        assert (await client.chunk(observation(5, must_go=False)))[0].timestep == 5


async def test_actions_with_nan_never_reach_a_client():
    async with started_client() as (rig, client):
        rig.upstream.actions = lambda _: np.full((4, 3), np.nan, np.float32)
        await client.send(observation())
        code, text = await client.refused(client.actions_call())
        assert code.name == 'INTERNAL'
        assert 'NaN' in text


@pytest.mark.parametrize('status', [Status.TOO_LATE, Status.SUPERSEDED])
async def test_a_chunk_that_would_be_too_late_is_empty_and_the_client_goes_on(status):
    async with started_client() as (rig, client):
        rig.upstream.fail_with = PredictionError(status, 'late')
        assert not await client.chunk(observation(1))
        rig.upstream.fail_with = None
        assert (await client.chunk(observation(2)))[0].timestep == 2


async def test_no_observation_is_an_empty_chunk_after_the_wait():
    async with started_client(wait_s=0.01) as (rig, client):
        assert await client.actions_call() == b''
        assert not rig.upstream.requests


async def test_fewer_actions_per_chunk_are_honoured():
    async with robot_client_rig() as rig:
        client = await rig.started(instructions(actions_per_chunk=2))
        assert [each.timestep for each in await client.chunk(observation(3))] == [3, 4]


async def test_a_client_that_begins_anew_begins_an_episode():
    async with started_client() as (rig, client):
        for begins in (True, False):
            await client.chunk(observation())
            assert rig.upstream.requests[-1][1].episode_start is begins
        await client.start()
        await client.chunk(observation())
        assert rig.upstream.requests[-1][1].episode_start
        assert rig.upstream.opened == 2


async def test_a_client_that_leaves_frees_its_place():
    async with started_client(max_callers=1) as (rig, client):
        await client.chunk(observation())
        assert rig.gateway.counters.callers == {'lerobot': 1}
        waiting = asyncio.ensure_future(client.actions())
        (known,) = rig.door.clients._clients.values()
        await soon(lambda: known.running)
        await client.channel.close()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await soon(lambda: not rig.gateway.callers)


async def test_a_promoted_policy_of_another_name_goes_on_driving():
    async with started_client() as (rig, client):
        rig.upstream.contract = replace(
            rig.upstream.contract, policy='v2', fingerprint='v2@ff', chunk_steps=2
        )
        await client.send(observation())
        assert len(await client.actions()) == 2
        rig.upstream.contract = replace(
            rig.upstream.contract, state_names=('other',), action_names=('other',)
        )
        await client.send(observation())
        code, text = await client.refused(client.actions_call())
        assert code.name == 'INVALID_ARGUMENT'
        assert 'joint_1.pos' in text


async def test_an_observation_that_waits_is_sent_in_the_order_of_the_policy_of_now():
    async with started_client() as (rig, client):
        await client.send(observation())
        rig.upstream.contract = replace(rig.upstream.contract, state_names=JOINTS[::-1])
        await client.actions()
        ((_, request),) = rig.upstream.requests
        assert (request.state.tolist(), request.episode_start) == ([1.0, 0.5, 0.0], True)


async def test_a_confirmed_order_of_actions_is_that_of_one_policy():
    async with started_client(action_order_confirmed=True) as (rig, client):
        rig.upstream.contract = replace(rig.upstream.contract, action_names=JOINTS[::-1])
        await client.send(observation())
        code, text = await client.refused(client.actions_call())
        assert (code.name, rig.upstream.requests) == ('INVALID_ARGUMENT', [])
        assert 'are gripper.pos, joint_2.pos, joint_1.pos now' in text
        await client.start()
        assert await client.chunk(observation())
