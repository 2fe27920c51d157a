# SPDX-License-Identifier: Apache-2.0
"""Both clients at the door PolicyService, over the fake upstream of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
import threading

from msgspec.structs import replace
import numpy as np
import pytest
from support.gateway.certificates import certificate_files
from support.gateway.door_thread import DoorThread
from support.gateway.gateway_rig import exposure_of
from support.network.ports import free_port
from support.threads import in_thread
from support.waiting import wait_until

from lerobot_serve.access.token_file import Tokens
from lerobot_serve.client import (
    AsyncPolicyClient,
    ClientClosed,
    NO_CAGE,
    NotFinite,
    PolicyClient,
    PolicyFailed,
    PolicySession,
    QuotaUsedUp,
    ServerUnavailable,
    SessionRejected,
    TooLate,
    WrongObservation,
    WrongSettings,
)
from lerobot_serve.client.steps import THREADS
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.grpc_server.calls import CallSettings

NAMES, FRONT = EXAMPLE_CONTRACT.state_names, 'observation.images.front'
STATE = (0.0, 0.5, 1.0)
IMAGES = {FRONT: np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8)}
LIMIT_S, SHORT_S = 20.0, 0.2

pytestmark = pytest.mark.usefixtures('grpc_thread')


@pytest.fixture
def door() -> Iterator[DoorThread]:
    made = DoorThread()
    yield made
    made.close()


@pytest.fixture
def fixed_door() -> Iterator[DoorThread]:
    """One that comes back under the same address."""
    made = DoorThread(Exposure('policy_service', port=free_port()))
    yield made
    made.close()


@pytest.fixture
def client(door) -> Iterator[PolicyClient]:
    with connect(door) as made:
        yield made


@pytest.fixture
def session(client) -> PolicySession:
    return client.open(state_names=NAMES, action_names=NAMES, cameras=[FRONT])


def connect(door: DoorThread, **changes) -> PolicyClient:
    given = {'client_id': 'notebook', 'timeout_s': LIMIT_S, **changes}
    return PolicyClient.connect(f'grpc://{door.address}', **given)


def test_a_prediction_has_all_that_one_over_zenoh_has(door, session):
    chunk = session.predict(STATE, IMAGES, 'pick')
    np.testing.assert_array_equal(chunk.actions, np.add.outer(range(4), STATE))
    assert chunk.actions.flags.writeable and chunk.actions.dtype == np.float32
    assert (chunk.slot, chunk.policy, chunk.fingerprint) == ('prod', 'fake', 'fake@0123456789ab')
    assert (chunk.sequence, chunk.policy_changed, chunk.superseded) == (1, False, 2)
    timings = chunk.timings
    assert (timings.queue_wait_ms, timings.processing_ms, timings.inference_ms) == (0.25, 0.5, 1.5)
    assert timings.round_trip_ms > 0
    assert chunk.episode_id == session.episode_id
    ((_, asked),) = door.upstream.requests
    # the gateway adds who calls: an episode of the same name is another one for another caller
    assert (asked.task, asked.episode_id.partition('~')[0]) == ('pick', session.episode_id)
    np.testing.assert_array_equal(asked.images[FRONT], IMAGES[FRONT])


def test_a_session_is_opened_on_its_terms_and_closed_with_its_stream(door, client):
    info = client.describe()
    assert (info.policy, info.state_names, info.camera_names) == (
        'fake@0123456789ab',
        NAMES,
        (FRONT,),
    )
    assert (info.chunk_steps, info.control_hz, info.observation_steps) == (4, 30.0, 1)
    with client.open(task='tidy', tags=[('run', '7')], fps=15.0, policy='fake') as session:
        (name,) = door.callers
        assert session.client_id == name
        assert name.startswith('gateway/policy_service/notebook@127.0.0.1:')
        (terms,) = door.upstream.terms
        assert (terms.state_names, terms.action_names) == (NAMES, NAMES)
        assert (terms.task, terms.fps, terms.policy) == ('tidy', 15.0, 'fake')
        assert {tag.key: tag.value for tag in terms.tags} == {
            'caller': 'lerobot_serve.client',
            'cage': 'none',
            'run': '7',
        }
        assert [camera.name for camera in terms.cameras] == [FRONT]
        assert (session.fingerprint, session.chunk_steps) == (info.policy, 4)
        assert session.warnings == (NO_CAGE,)
    # at once, not by an idle timeout
    wait_until(lambda: not door.callers, 'the session is closed')


def test_names_in_another_order_are_refused_in_the_words_of_the_server(door, client):
    with pytest.raises(SessionRejected, match='order differ') as caught:
        client.open(action_names=NAMES[::-1])
    assert caught.value.code is Refusal.ACTION_NAMES and not caught.value.may_retry
    # a refused one leaves nothing behind
    client.open().close()


def test_a_jpeg_is_decoded_by_the_door(door, client):
    with client.open(codec='jpeg') as session:
        smooth = np.full((48, 64, 3), (200, 100, 50), np.uint8)
        session.predict(STATE, {FRONT: smooth})
        np.testing.assert_allclose(door.upstream.requests[0][1].images[FRONT], smooth, atol=4)


@pytest.mark.parametrize(
    ('status', 'error'),
    [
        (Status.INVALID, WrongObservation),
        (Status.FAILED, PolicyFailed),
        (Status.NOT_FINITE, NotFinite),
        (Status.TOO_LATE, TooLate),
        (Status.QUOTA, QuotaUsedUp),
    ],
)
def test_each_status_has_the_error_that_it_has_over_zenoh(door, session, status, error):
    door.upstream.fail_with = PredictionError(status, 'told why')
    with pytest.raises(error, match='told why') as caught:
        session.predict(STATE, IMAGES)
    assert caught.value.remedy
    door.upstream.fail_with = None
    assert len(session.predict(STATE, IMAGES)) == 4
    assert session.counts['sessions'] == 1


def test_a_used_up_quota_comes_through_a_gateway(door, session):
    door.upstream.fail_with = PredictionError(Status.QUOTA, 'used up', 1.5)
    with pytest.raises(QuotaUsedUp, match='used up') as caught:
        session.predict(STATE, IMAGES)
    assert caught.value.retry_after_s == 1.5


def test_a_router_that_is_away_costs_time_and_no_error(door, session):
    session.predict(STATE, IMAGES)
    door.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no router')
    with pytest.raises(ServerUnavailable, match='no router'):
        session.predict(STATE, IMAGES, timeout_s=SHORT_S)
    thread, results = in_thread(lambda: session.predict(STATE, IMAGES))
    door.upstream.fail_with = None
    thread.join()
    assert len(results[0]) == 4
    assert session.counts['sessions'] >= 2


def test_a_gateway_without_a_place_rejects_the_session(door, client):
    others = [client.open(), client.open(), client.open(), client.open()]
    with pytest.raises(SessionRejected, match='max_callers') as caught:
        client.open()
    assert caught.value.code is Refusal.CAPACITY and caught.value.may_retry
    others[0].close()
    wait_until(lambda: len(door.callers) == 3, 'its place is free')
    client.open()


def test_a_late_reply_is_counted_and_not_taken_for_the_next(door, session):
    door.upstream.hold()
    with pytest.raises(TooLate):
        session.predict((7, 7, 7), IMAGES, timeout_s=SHORT_S)
    thread, results = in_thread(lambda: session.predict(STATE, IMAGES))
    wait_until(lambda: session.counts['requests'] == 2, 'the second is sent')
    door.do(door.upstream.release)
    thread.join()
    assert results[0].actions[0].tolist() == list(STATE)
    assert session.counts['dropped_late_reply'] == 1


def test_an_episode_begins_with_the_next_request(door, session):
    session.predict(STATE, IMAGES)
    name = session.begin_episode(task='second')
    assert session.predict(STATE, IMAGES).episode_id == name
    before, after = (asked for _, asked in door.upstream.requests)
    assert before.episode_id != after.episode_id
    assert after.episode_id.startswith(f'{name}~')
    assert (before.task, after.task) == ('', 'second')


def test_sessions_of_one_client_are_callers_of_their_own(door, client):
    sessions = [client.open(), client.open(client_id='arm-2')]
    for number, session in enumerate(sessions):
        assert session.predict((number, 0, 0), IMAGES).actions[0, 0] == number
    names = [who.partition('@')[0].rpartition('/')[2] for who, _ in door.upstream.requests]
    assert names == ['notebook', 'arm-2']


def test_a_gateway_that_goes_is_unavailable_and_one_that_comes_back_is_used(fixed_door):
    door = fixed_door
    with connect(door) as client, client.open() as session:
        session.predict(STATE, IMAGES)
        door.run(door.rig.door.stop())
        told = r'grpc://127.0.0.1.*that (it|the gateway) runs'
        with pytest.raises(ServerUnavailable, match=told):
            session.predict(STATE, IMAGES, timeout_s=SHORT_S)
        door.run(door.rig.door.start())
        assert len(session.predict(STATE, IMAGES)) == 4
        assert session.counts['sessions'] == 2


def test_a_gateway_that_goes_with_a_request_gets_it_again(fixed_door):
    door = fixed_door
    with connect(door) as client, client.open() as session:
        door.upstream.hold()
        thread, results = in_thread(lambda: session.predict(STATE, IMAGES))
        wait_until(lambda: door.upstream.requests, 'it is sent')
        door.run(door.rig.door.stop())
        door.do(door.upstream.release)
        door.run(door.rig.door.start())
        thread.join()
        assert len(results[0]) == 4
        assert session.counts['sessions'] == 2


def test_a_presence_that_a_proxy_ends_loses_no_session(door, client, session):
    channel = client._connection._link._channel
    seen = []
    channel.watch(seen.append)
    ended = channel._presence
    ended.cancel()
    wait_until(lambda: channel._presence is not ended, 'it is begun again')
    assert len(session.predict(STATE, IMAGES)) == 4
    assert (seen, session.counts['sessions']) == ([], 1)


def test_a_presence_without_a_place_at_the_gateway_loses_no_session(door, client, session):
    channel = client._connection._link._channel
    seen = []
    channel.watch(seen.append)
    (handlers, *_) = door.rig.door._handlers
    # the stream of the session has the only place
    door.do(lambda: setattr(handlers._calls, 'settings', CallSettings(1, 50.0)))
    channel._presence.cancel()
    wait_until(lambda: door.rig.refused.get('max_calls_of_address', 0) > 1, 'it is refused twice')
    assert len(session.predict(STATE, IMAGES)) == 4
    assert (seen, session.counts['sessions']) == ([], 1)


def test_a_connect_to_nothing_says_what_to_check(door):
    address = door.address
    door.close()
    with pytest.raises(ServerUnavailable, match=rf'grpc://{address}.*check that the gateway runs'):
        PolicyClient.connect(f'grpc://{address}', timeout_s=SHORT_S)


def test_tls_and_a_token_let_a_client_in(tmp_path):
    files = certificate_files(tmp_path)
    tokens = tmp_path / 'tokens'
    tokens.touch(0o600)
    tokens.write_text('evaluation sesame-open-the-door-123\n')
    exposure = exposure_of('policy_service', files, tokens_file=str(tokens))
    assert isinstance(exposure.tokens, Tokens)
    door = DoorThread(exposure)
    url = f'grpcs://{door.address}'
    given = {'tls_ca': files[0], 'timeout_s': LIMIT_S}
    try:
        with (
            PolicyClient.connect(url, token='sesame-open-the-door-123', **given) as client,
            client.open() as session,
        ):
            assert len(session.predict(STATE, IMAGES)) == 4
            assert 'evaluation' in session.client_id
        with pytest.raises(WrongSettings, match=r'wrong token.*give connect\(token='):
            PolicyClient.connect(url, token='wrong', **given)
        with pytest.raises(ServerUnavailable):
            PolicyClient.connect(f'grpc://{door.address}', timeout_s=SHORT_S)
    finally:
        door.close()


def test_many_sessions_of_one_loop(door):
    async def drive(client: AsyncPolicyClient, number: int) -> None:
        async with await client.open() as session, session.stream() as stream:
            for step in range(3):
                stream.put((number, step, 0), IMAGES)
                chunk = await anext(stream)
                assert chunk.actions[0].tolist() == [number, step, 0]

    async def run() -> None:
        async with AsyncPolicyClient.connect(
            f'grpc://{door.address}', timeout_s=LIMIT_S
        ) as client:
            await asyncio.gather(*(drive(client, number) for number in range(3)))

    asyncio.run(run())
    wait_until(lambda: not door.callers, 'all sessions are closed')


async def test_a_cancelled_call_leaves_its_place_to_the_next(door):
    async with (
        AsyncPolicyClient.connect(f'grpc://{door.address}', timeout_s=LIMIT_S) as client,
        await client.open() as session,
    ):
        door.upstream.hold()
        first = asyncio.create_task(session.predict((7, 0, 0), IMAGES))
        while not door.upstream.requests:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(session.predict(STATE, IMAGES))
        while session.counts['requests'] < 2:
            await asyncio.sleep(0.001)
        door.do(door.upstream.release)
        assert (await second).actions[0].tolist() == list(STATE)


def test_no_thread_outlives_its_client(door):
    before = set(threading.enumerate())
    with connect(door) as client, client.open() as session:
        session.predict(STATE, IMAGES)
        assert {each.name for each in threading.enumerate()} >= {'prediction_call'}

    def left() -> set[str]:
        return {each.name for each in set(threading.enumerate()) - before if each.is_alive()}

    wait_until(lambda: 'prediction_call' not in left(), 'its thread has ended')


@contextmanager
def opening_held(door: DoorThread) -> Iterator[threading.Event]:
    """Let no session be opened; gives what is set once one is wanted."""
    is_wanted, is_over = threading.Event(), asyncio.Event()

    async def wait(*_) -> None:
        is_wanted.set()
        await is_over.wait()
        raise PredictionError(Status.UNAVAILABLE, 'no router')

    door.upstream.open = wait
    yield is_wanted
    door.do(is_over.set)


def test_closing_a_client_releases_the_one_that_opens(door, client):
    with opening_held(door) as is_wanted:
        thread, results = in_thread(client.open)
        assert is_wanted.wait(LIMIT_S)
        client.close()
        thread.join(LIMIT_S / 4)
        assert isinstance(results[0], ClientClosed)


async def test_cancelled_opens_keep_no_thread_of_their_client(door):
    async def cancel_opens(client: AsyncPolicyClient) -> None:
        opening = [asyncio.create_task(client.open()) for _ in range(THREADS)]
        sessions = {}
        while sum(each._link._opening is not None for each in sessions.values()) < THREADS:
            await asyncio.sleep(0.01)
            sessions = client._connection.sessions.copy()
        for each in opening:
            each.cancel()
        await asyncio.wait(opening)

    address = f'grpc://{door.address}'
    async with AsyncPolicyClient.connect(address, timeout_s=LIMIT_S) as client:
        with opening_held(door):
            async with asyncio.timeout(LIMIT_S / 5):
                await cancel_opens(client)
                assert (await client.describe()).chunk_steps == 4


def test_the_end_of_one_session_leaves_the_next_one_under_its_name(client):
    first = client.open()._plans.state.machine.requested
    link = client._connection._link
    link.open(replace(first, session_epoch=first.session_epoch + 1), LIMIT_S)
    call = link._call
    link.close_session(first, SHORT_S)
    assert link._call is call
