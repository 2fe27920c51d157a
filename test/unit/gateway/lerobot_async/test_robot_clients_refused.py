# SPDX-License-Identifier: Apache-2.0
"""What the door refuses, with what text; nothing of it harms another client."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from support.gateway.robot_client_rig import (
    instructions,
    JOINTS,
    message,
    observation,
    piece,
    pieces,
    robot_client_rig,
    SHAPE,
    soon,
    started_client,
)
from support.replacing import replace

from benchmarks.harness.exploits import all_exploits
from benchmarks.harness.peer_classes import features, pickled
from lerobot_serve.gateway.callers.mapping import NameMapping
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.lerobot_async import door
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.peer_formats.lerobot_messages import TransferState

pytest.importorskip('torch')
pytestmark = pytest.mark.usefixtures('grpc_thread')
SWAPPED = (JOINTS[1], JOINTS[0], JOINTS[2])


async def refusal(rig, asked=None, **changes) -> tuple[str, str]:
    """Return the status and text of policy instructions."""
    client = rig.client()
    await client.call('Ready')
    data = pickled(asked or instructions(**changes))
    code, text = await client.refused(client.instruct(data))
    return code.name, text


@pytest.mark.parametrize(
    ('changes', 'texts'),
    [
        ({'pretrained_name_or_path': 'a/b'}, ["policy 'a/b'", 'fake is served', 'loads nothing']),
        ({'actions_per_chunk': 5}, ['actions_per_chunk is 5', 'predicts 4', 'at most 4']),
        ({'actions_per_chunk': 0}, ['at least 1, got 0']),
        ({'rename_map': {'a': 'b'}}, ['rename_map', 'lerobot.mapping']),
        ({'lerobot_features': {}}, ['lacks joint_1.pos, joint_2.pos, gripper.pos']),
        ({'lerobot_features': features(JOINTS, {})}, ['needs the cameras', 'images.front']),
        ({'lerobot_features': features(JOINTS, {'top': SHAPE})}, ["no camera 'top'"]),
        ({'lerobot_features': features((*JOINTS, 'x'), {'front': SHAPE})}, ['no state x']),
        (
            {'lerobot_features': features(SWAPPED, {'front': SHAPE})},
            ['sends no names of actions', ', '.join(SWAPPED), 'lerobot.action_order_confirmed'],
        ),
    ],
)  # fmt: skip
async def test_instructions_that_do_not_fit_are_refused(changes, texts):
    async with robot_client_rig() as rig:
        code, text = await refusal(rig, **changes)
        assert code == 'INVALID_ARGUMENT'
        assert not [each for each in texts if each not in text], text
        assert rig.refused == {'invalid': 1}
        assert not rig.upstream.opened


@pytest.mark.parametrize(
    ('asked', 'policy', 'accepted'),
    [
        ('fake', 'fake', True),
        ('user/fake', 'fake', True),
        ('/models/fake/', 'fake', True),
        ('fake@0123456789ab', 'fake', True),
        ('outputs/act/checkpoints/020000/pretrained_model', 'act-020000', True),
        ('outputs/act/checkpoints/last/pretrained_model', 'act-020000', True),
        ('outputs/act/checkpoints/040000/pretrained_model', 'act-020000', False),
        ('outputs/act2/checkpoints/last/pretrained_model', 'act-020000', False),
        ('pretrained_model', 'pretrained_model', False),
        ('fak', 'fake', False),
        ('v2', 'v1|v2', True),
        ('', 'fake', False),
    ],
)
async def test_the_policy_of_a_client_is_compared_and_never_loaded(asked, policy, accepted):
    async with robot_client_rig() as rig:
        rig.upstream.contract = replace(rig.upstream.contract, policy=policy)
        wanted = instructions(pretrained_name_or_path=asked)
        if accepted:
            await rig.started(wanted)
        else:
            assert (await refusal(rig, wanted))[0] == 'INVALID_ARGUMENT'


@pytest.mark.parametrize(
    ('policy', 'served', 'name'),
    [('v1|v2', 'v1 or v2 is served', 'v1'), ('reach|reach', 'reach is served', 'reach')],
)
async def test_the_refusal_has_a_name_that_can_be_given(policy, served, name):
    async with robot_client_rig() as rig:
        rig.upstream.contract = replace(rig.upstream.contract, policy=policy)
        _, text = await refusal(rig, instructions(pretrained_name_or_path='other'))
        assert f', and {served};' in text
        assert f'--pretrained_name_or_path={name},' in text


@pytest.mark.parametrize('names', [('*',), ('other', 'user/mine')])
async def test_the_operator_may_accept_other_names_of_the_policy(names):
    async with robot_client_rig(policy_names=names) as rig:
        await rig.started(instructions(pretrained_name_or_path='user/mine'))


async def test_a_confirmed_order_leaves_the_columns_as_they_are():
    async with robot_client_rig(action_order_confirmed=True) as rig:
        named = features(SWAPPED, {'front': SHAPE})
        client = await rig.started(instructions(lerobot_features=named))
        values = {JOINTS[0]: 1.0, JOINTS[1]: 2.0, JOINTS[2]: 3.0}
        await client.send(observation(**values))
        # by name into the order of the policy; the fake policy answers with its state
        assert (await client.actions())[0].action.tolist() == [1.0, 2.0, 3.0]


async def test_a_mapping_names_joints_cameras_and_actions():
    theirs = ('pan', 'lift', 'grip')
    mapping = NameMapping(
        cameras={'top': 'observation.images.front', 'depth': ''},
        state=('lift', 'pan', 'grip'),
        actions={'pan': (JOINTS[1],), 'lift': (JOINTS[0],), 'grip': (JOINTS[2],)},
    )
    async with robot_client_rig(mapping=mapping) as rig:
        named = features(theirs, {'top': SHAPE, 'depth': (4, 4, 1)})
        client = await rig.started(instructions(lerobot_features=named))
        values = dict(zip(theirs, (1.0, 2.0, 3.0), strict=True))
        frames = {'top': np.zeros(SHAPE, np.uint8), 'depth': np.zeros((4, 4, 1), np.uint16)}
        actions = await client.chunk(observation(**values, **frames))
        assert rig.upstream.requests[0][1].state.tolist() == [2.0, 1.0, 3.0]
        assert actions[0].action.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ({'front': np.zeros((4, 4), np.uint8)}, 'must be height x width x 3'),
        ({'front': np.zeros(SHAPE, np.float32)}, 'of uint8'),
        ({'front': 1.0}, 'front is not an image'),
        ({JOINTS[0]: float('nan')}, 'state[0] is nan'),
        ({JOINTS[0]: 'left'}, f'state {JOINTS[0]} must be numbers'),
        ({JOINTS[0]: np.zeros(2)}, 'state has 4 values'),
        ({'task': 'x' * 5000}, 'LongText'),
    ],
)
async def test_an_observation_that_does_not_fit_is_refused(values, text):
    async with started_client() as (_, client):
        code, said = await client.refused(client.send(observation(**values)))
        assert code.name == 'INVALID_ARGUMENT'
        assert text in said
        assert await client.chunk(observation())


async def test_a_missing_joint_is_named():
    async with started_client() as (_, client):
        seen = observation()
        del seen.observation[JOINTS[1]]
        code, said = await client.refused(client.send(seen))
        assert code.name == 'INVALID_ARGUMENT'
        assert 'lacks joint_2.pos' in said


async def test_exploits_are_refused_and_the_client_goes_on():
    async with started_client() as (_, client):
        names = ('os.system by lines', 'builtins.eval by stack inside', 'ndarray of 10^11')
        for data in map(all_exploits().get, names):
            code, text = await client.refused(client.send_pieces(pieces(data)))
            assert (code.name, text[:22]) == ('INVALID_ARGUMENT', 'the pickle is refused:')
            assert (await client.refused(client.instruct(data)))[0].name == 'INVALID_ARGUMENT'
        assert await client.chunk(observation())


@pytest.mark.parametrize(
    ('messages', 'text'),
    [
        ([], 'has no end'),
        ([piece(TransferState.BEGIN, b'x')], 'has no end'),
        ([piece(TransferState.UNKNOWN, b'x')], 'transfer_state is missing'),
        ([piece(7, b'x')], 'in [0, 3], got 7'),
        ([b'\x08'], 'a number is cut off'),
        ([b'\x12\x7fabc'], 'is cut off'),
        ([b'\x0f'], 'fields of type 7'),
        ([b'\x10\x01'], 'field 2 is of another type'),
        ([b'\xff' * 11], 'a number is cut off'),
        ([piece(TransferState.BEGIN, bytes(60_000)), piece(TransferState.END, bytes(60_000))],
         'more than 100000 bytes'),
    ],
)  # fmt: skip
async def test_pieces_that_are_no_observation_are_refused(messages, text):
    async with started_client(max_message_mb=0.1) as (_, client):
        code, said = await client.refused(client.send_pieces(messages))
        assert code.name == 'INVALID_ARGUMENT'
        assert text in said


async def test_unknown_fields_are_skipped_as_protobuf_does():
    async with started_client() as (_, client):
        (whole,) = pieces(pickled(observation()))
        later = b'\x18\x05' + message(4, b'new') + b'\x2d0123' + b'\x3101234567'
        await client.send_pieces([later + whole + later])
        assert await client.actions()


async def test_an_observation_that_stops_on_the_way_is_ended_and_others_are_served(monkeypatch):
    monkeypatch.setattr(door, 'OBSERVATION_LIMIT_S', 0.2)
    async with robot_client_rig() as rig:
        slow, other = await rig.started(), await rig.started()
        ended = asyncio.Event()

        async def begin_only():
            yield piece(TransferState.BEGIN, b'x')
            await ended.wait()

        stopped = slow.send_pieces(begin_only())
        assert await other.chunk(observation())
        code, text = await slow.refused(stopped)
        ended.set()
        assert code.name == 'INVALID_ARGUMENT'
        assert 'not complete within 0.2 s' in text
        assert await slow.chunk(observation())


async def test_one_client_sends_one_observation_at_a_time():
    async with started_client() as (rig, client):
        ended = asyncio.Event()

        async def begin_only():
            yield piece(TransferState.BEGIN, b'x')
            await ended.wait()

        first = client.send_pieces(begin_only())
        (known,) = rig.door.clients._clients.values()
        await soon(lambda: known.is_receiving)
        code, text = await client.refused(client.send(observation()))
        assert code.name == 'RESOURCE_EXHAUSTED'
        assert 'another observation' in text
        first.cancel()
        ended.set()
        await soon(lambda: not known.is_receiving)
        await client.send(observation())


async def test_a_connection_without_instructions_is_refused():
    async with robot_client_rig() as rig:
        client = rig.client()
        for work in (client.send(observation()), client.actions_call()):
            code, text = await client.refused(work)
            assert code.name == 'INVALID_ARGUMENT'
            assert 'restart the robot client' in text


async def test_who_is_refused_and_why_is_logged_once():
    async with robot_client_rig() as rig:
        for _ in range(3):
            await refusal(rig, pretrained_name_or_path='a/b')
        (line,) = (line for line in rig.log.lines if 'is refused' in line)
        assert line.startswith('robot client at 127.0.0.1:')
        assert "(invalid): the client asks for the policy 'a/b'" in line
        assert rig.refused == {'invalid': 3}
        # what came since is one line
        rig.now_s += 10.0
        await rig.gateway.close_idle()
        assert rig.log.lines[-1].endswith('(2 times in 10 s)')


async def test_more_clients_than_allowed_are_refused_until_one_has_left():
    async with robot_client_rig(max_callers=1) as rig:
        await rig.started()
        assert await refusal(rig) == (
            'RESOURCE_EXHAUSTED',
            '1 robot clients are connected, max_callers is 1; retry when one has left, or '
            'raise max_callers',
        )
        rig.now_s += 31.0
        newcomer = await rig.started()
        assert await newcomer.chunk(observation())
        assert len(rig.door.clients) == 1


async def test_without_a_server_a_client_is_asked_to_retry():
    async with robot_client_rig() as rig:
        rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no router', 1.0)
        client = rig.client()
        code, text = await client.refused(client.call('Ready'))
        assert (code.name, text) == ('UNAVAILABLE', 'no router')


def test_the_service_is_in_no_protobuf_pool():
    """LeRobot's own definition can be loaded in the same process."""
    pool = pytest.importorskip('google.protobuf.descriptor_pool').Default()
    if 'lerobot' in {thread.name for thread in threading.enumerate()}:
        pytest.skip('LeRobot is loaded')
    file = 'lerobot/transport/services.proto'
    with pytest.raises(KeyError):
        pool.FindFileByName(file)


async def test_a_policy_without_names_is_refused_to_a_client_with_names():
    async with robot_client_rig() as rig:
        rig.upstream.contract = PolicyContract('fake', 'fake@1', (), (), {}, 4, 30.0)
        assert 'no state joint_1.pos' in (await refusal(rig))[1]
