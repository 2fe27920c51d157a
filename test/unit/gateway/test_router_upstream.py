# SPDX-License-Identifier: Apache-2.0
"""Sessions of callers at a router: numbers, losses, refusals, images. The link is a fake."""

from __future__ import annotations

import asyncio
from collections import Counter
import threading
from typing import Any

from msgspec.structs import replace
import numpy as np
import pytest
from support.gateway.fake_link import CAMERA, failed, FakeLink, ok, policy_reply
from support.gateway.gateway_rig import in_loop, RecordingLog, refusal, until

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.chunk import retry_after
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Codec, Flag, Refusal
from lerobot_serve.contract.schema import Status as ChunkStatus
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import PredictionRequest, Status
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.router import availability, calls
from lerobot_serve.gateway.router.upstream import RouterUpstream
from lerobot_serve.links.link import Presence
from lerobot_serve.session.machine import SessionLost

ONE, TWO = Caller('http', '10.0.0.1:1'), Caller('http', '10.0.0.1:2')
FRAME = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """A router that is away is looked for at once."""
    monkeypatch.setattr(availability, 'RETRY_S', 0.005)
    monkeypatch.setattr(availability, 'FIRST_WAIT_S', 0.05)


class Rig:
    """An upstream over a fake link. Build it in the event loop."""

    def __init__(self, **settings: Any) -> None:
        self.link, self.dropped, self.log = FakeLink(), Counter(), RecordingLog()
        self.upstream = self.link.upstream = RouterUpstream(
            self.link,
            GatewayParameters(**settings),
            self.log,
            count_dropped=lambda reason: self.dropped.update([reason]),
        )
        self.upstream.start()

    async def __aenter__(self) -> Rig:
        return self

    async def waiting(self) -> tuple[Any, asyncio.Future[Any]]:
        """Return a session with a request that the router does not answer."""
        session = await self.upstream.open(ONE)
        self.link.answer = lambda given: None
        asked = asyncio.ensure_future(session.predict(request()))
        await until(lambda: self.link.requests)
        return session, asked

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()


def request(**changes: Any) -> PredictionRequest:
    given = {'state': np.float32([1, 2]), 'images': {CAMERA.name: FRAME}}
    return PredictionRequest(**{**given, **changes})


async def test_each_caller_is_a_client_of_its_own_with_the_names_of_the_policy():
    async with Rig() as rig:
        sessions = [await rig.upstream.open(caller) for caller in (ONE, TWO)]
        first, second = rig.link.opened
        assert [each.client_id for each in rig.link.opened] == [ONE.client_id, TWO.client_id]
        assert first.instance != second.instance
        assert first.action_names == ('a.pos', 'b.pos')
        assert [camera.name for camera in first.cameras] == [CAMERA.name]
        assert (first.fps, first.robot_type) == (10.0, 'gateway')
        contract = sessions[0].contract
        assert (contract.policy, contract.fingerprint) == ('one|two', 'one@11|two@22')
        assert contract.cameras == {CAMERA.name: (24, 32, 3)}


TERMS = OpenSessionRequest(
    state_names=('x',),
    action_names=('y',),
    cameras=(CAMERA,),
    fps=25.0,
    policy='one@11',
    task='tidy',
    tags=(KeyValue('run', '7'),),
)


async def test_the_router_judges_the_terms_of_a_caller_each_time_a_session_is_opened():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE, TERMS)
        await session.open()
        for opened in rig.link.opened:
            assert (opened.state_names, opened.action_names) == (('x',), ('y',))
            assert (opened.fps, opened.policy, opened.task) == (25.0, 'one@11', 'tidy')
            assert (opened.cameras, opened.tags) == ((CAMERA,), (KeyValue('run', '7'),))
            assert opened.robot_type == 'gateway'
        rig.link.refusal = SessionRefused(Refusal.ACTION_NAMES, 'the order differs')
        error = await refusal(rig.upstream.open(TWO, TERMS))
        assert (error.status, error.refusal) == (Status.INVALID, Refusal.ACTION_NAMES)


@pytest.mark.parametrize(
    ('ours', 'theirs', 'policy'),
    [
        ('', '', ''),
        ('one@11', '', 'one@11'),
        ('', 'one', 'one'),
        ('one', 'one@11', 'one@11'),
        ('one@11', 'one', 'one@11'),
        ('one', 'two', None),
        ('one@11', 'one@22', None),
    ],
)
async def test_a_policy_is_one_that_gateway_and_caller_accept(ours, theirs, policy):
    async with Rig(required_policy=ours) as rig:
        opening = rig.upstream.open(ONE, replace(TERMS, policy=theirs))
        if policy is None:
            assert (await refusal(opening)).refusal is Refusal.WRONG_POLICY
            assert not rig.link.opened
        else:
            await opening
            assert rig.link.opened[0].policy == policy


async def test_a_session_that_ends_late_leaves_the_replies_of_the_next_one_of_its_caller():
    async with Rig() as rig:
        first, second = await rig.upstream.open(ONE), await rig.upstream.open(ONE)
        await first.close()
        assert (await second.predict(request())).sequence == 1
        assert [each.session_epoch for each in rig.link.closed] == [
            rig.link.opened[0].session_epoch
        ]


async def test_a_prediction_has_what_the_router_says():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.answer = lambda given: ok(given, header=given.header.for_reply(2))
        found = await session.predict(request(task='pick', inference_delay_steps=3))
        assert found.actions.tolist() == [[1, 2]] * 3
        assert (found.slot, found.policy, found.fingerprint) == ('b', 'two', 'two@22')
        assert (found.sequence, found.inference_ms, found.queue_wait_ms) == (1, 4.0, 1.0)
        assert found.policy_changed
        (sent,) = rig.link.requests
        assert (sent.task, sent.inference_delay_steps) == ('pick', 3)
        assert found.episode_id == sent.episode_id != ''


async def test_numbers_rise_and_an_episode_is_announced_and_flagged_once():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        for changes in ({}, {}, {'episode_id': 'x'}, {'episode_id': 'x'}, {'episode_start': True}):
            await session.predict(request(**changes))
        sent = rig.link.requests
        assert [each.header.seq for each in sent] == [1, 2, 3, 4, 5]
        assert [each.header.episode for each in sent] == [1, 1, 2, 2, 3]
        assert [bool(each.header.flags & Flag.EPISODE_START) for each in sent] == [
            *(True, False, True, False, True)
        ]
        first, _, named, _, last = (each.episode_id for each in sent)
        assert first.startswith('gateway/http/')
        assert len({first, named, last}) == 3
        epoch = sent[0].header.session_epoch
        assert rig.link.announced == [
            (ONE.client_id, epoch, 2, 'x'),
            (ONE.client_id, epoch, 3, last),
        ]


@pytest.mark.parametrize('status', [ChunkStatus.NO_SESSION, ChunkStatus.DRAINING])
async def test_a_request_that_finds_its_session_lost_is_sent_once_more_in_a_new_one(status):
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        replies = [lambda given: failed(given, status, 'gone'), ok]
        rig.link.answer = lambda given: replies.pop(0)(given)
        found = await session.predict(request(episode_start=True))
        assert found.slot == 'b'
        first, second = rig.link.requests
        assert second.header.session_epoch == first.header.session_epoch + 1
        assert (second.header.seq, second.header.episode) == (1, 0)
        assert second.episode_id == first.episode_id
        assert second.header.flags == Flag.EPISODE_START
        assert rig.link.opened[0].instance == rig.link.opened[1].instance


@pytest.mark.parametrize('is_noticed', [False, True])
@pytest.mark.parametrize('part', ['state_names', 'action_names'])
async def test_a_request_in_the_names_of_a_policy_that_was_replaced_is_never_sent(
    part, is_noticed
):
    """The router restarted with the same names in another order, noticed before or with it."""
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.reply = policy_reply(**{part: ('b.pos', 'a.pos')})
        replies = [lambda given: failed(given, ChunkStatus.NO_SESSION, 'gone'), ok]
        rig.link.answer = lambda given: replies.pop(0)(given)
        if is_noticed:
            session.on_lost(SessionLost('the router closed its replies'))
            del replies[0]
        refused = await refusal(session.predict(request()))
        assert refused.status is Status.UNAVAILABLE
        assert 'were a.pos, b.pos and are b.pos, a.pos now' in refused.text
        # none in the new session
        epoch = rig.link.opened[1].session_epoch
        assert all(sent.header.session_epoch != epoch for sent in rig.link.requests)
        assert getattr(session.contract, part) == ('b.pos', 'a.pos')
        # the caller has read the names of now
        assert (await session.predict(request())).slot == 'b'
        assert len(rig.link.opened) == 2


async def test_a_session_that_is_lost_twice_is_refused():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.answer = lambda given: failed(given, ChunkStatus.NO_SESSION, 'no such session')
        refused = await refusal(session.predict(request()))
        assert (refused.status, refused.retry_after_s) == (Status.UNAVAILABLE, 1.0)
        assert len(rig.link.requests) == 2
        rig.link.answer = ok
        assert (await session.predict(request())).slot == 'b'


QUOTA = {'status': ChunkStatus.QUOTA, 'extensions': (retry_after(2.5),)}


@pytest.mark.parametrize(
    ('reply', 'status', 'retry_after_s'),
    [
        ({'status': ChunkStatus.BAD_OBSERVATION}, Status.INVALID, 0.0),
        ({'status': ChunkStatus.POLICY_ERROR}, Status.FAILED, 0.0),
        ({'status': ChunkStatus.NOT_FINITE}, Status.NOT_FINITE, 0.0),
        ({'status': ChunkStatus.TOO_LATE}, Status.TOO_LATE, 0.0),
        ({'status': ChunkStatus.NO_SLOT}, Status.UNAVAILABLE, 1.0),
        ({'status': ChunkStatus.QUOTA}, Status.QUOTA, 0.0),
        (QUOTA, Status.QUOTA, 2.5),
        ({'status': 99}, Status.FAILED, 0.0),
        ({'robot': np.float32([[1, np.nan]])}, Status.NOT_FINITE, 0.0),
        ({'robot': np.float32([[1, 2, 3]])}, Status.FAILED, 0.0),
        ({'robot': np.zeros((0, 2), np.float32)}, Status.FAILED, 0.0),
    ],
)
async def test_a_reply_without_usable_actions_is_an_error(reply, status, retry_after_s):
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.answer = lambda given: ok(given, status_text='why', **reply)
        refused = await refusal(session.predict(request()))
        assert (refused.status, refused.retry_after_s) == (status, retry_after_s)
        assert refused.text == 'why' or 'status' not in reply


@pytest.mark.parametrize(
    ('code', 'status', 'retry_after_s'),
    [
        (Refusal.CAPACITY, Status.OVERLOADED, 1.0),
        (Refusal.NOT_READY, Status.UNAVAILABLE, 1.0),
        (Refusal.WRONG_POLICY, Status.INVALID, 0.0),
    ],
)
async def test_a_refused_session_says_why_and_whether_a_retry_helps(code, status, retry_after_s):
    async with Rig() as rig:
        rig.link.refusal = SessionRefused(code, 'because')
        refused = await refusal(rig.upstream.open(ONE))
        assert (refused.status, refused.retry_after_s) == (status, retry_after_s)
        assert 'because' in refused.text


async def test_a_policy_that_needs_past_observations_is_refused_with_the_remedy():
    async with Rig() as rig:
        rig.link.reply = policy_reply(observation_steps=2)
        refused = await refusal(rig.upstream.open(ONE))
        assert refused.status is Status.INVALID
        assert 'needs 2 observations with each request' in refused.text
        # the router keeps no place for it
        assert [each.session_epoch for each in rig.link.closed] == [
            each.session_epoch for each in rig.link.opened
        ]


async def test_a_lost_router_ends_what_waits_and_refuses_until_it_is_back():
    async with Rig() as rig:
        session, waiting = await rig.waiting()
        rig.link.go_away()
        refused = await refusal(waiting)
        assert refused.status is Status.UNAVAILABLE
        assert 'killed, hangs or is cut off' in refused.text
        refused = await refusal(rig.upstream.open(TWO))
        assert (refused.status, refused.retry_after_s) == (Status.UNAVAILABLE, 1.0)
        rig.link.answer = ok
        rig.link.come_back()
        await until(lambda: not rig.upstream.problem)
        assert (await session.predict(request())).sequence == 1
        assert len(rig.link.opened) == 2
        assert rig.log.lines[1:] == [
            '/policy_router: /policy_router is lost: it was killed, hangs or is cut off; callers '
            'are refused until it responds',
            '/policy_router responds',
        ]


async def test_a_router_that_closed_its_replies_and_restarted_is_used_at_once():
    async with Rig() as rig:
        _, waiting = await rig.waiting()
        rig.link.answer = ok
        rig.upstream.deposit_presence(Presence.CLOSED)
        assert (await waiting).slot == 'b'
        assert len(rig.link.opened) == 2


async def test_a_session_that_never_answers_is_opened_again_after_two_requests():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.answer = lambda given: None
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.predict(request()), 0.01)
        assert len(rig.link.opened) == 1
        rig.link.answer = ok
        assert (await session.predict(request())).sequence == 1
        assert len(rig.link.opened) == 2


async def test_replies_that_nobody_awaits_are_counted():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.answer = lambda given: None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.predict(request()), 0.01)
        (late,) = rig.link.requests
        # before the next request, and after it
        rig.link.deliver(ok(late))
        await until(lambda: rig.dropped == {'late_chunk': 1})
        rig.link.answer = ok
        await session.predict(request())
        rig.link.deliver(ok(late))
        rig.link.deliver(ok(late, client_id='robot_7'))
        rig.upstream.deposit_chunk(b'\x00\x01\x00\x00')
        await until(lambda: rig.dropped.total() == 4)
        assert rig.dropped == {'late_chunk': 2, 'other_client': 1, 'truncated': 1}


async def test_a_newer_request_ends_one_in_flight():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        rig.link.answer = lambda given: ok(given) if given.header.seq == 2 else None
        older = asyncio.ensure_future(session.predict(request()))
        await until(lambda: rig.link.requests)
        assert (await session.predict(request())).sequence == 2
        assert (await refusal(older)).status is Status.SUPERSEDED


@pytest.mark.parametrize(
    ('settings', 'size', 'codec'),
    [
        ({}, (48, 64), Codec.RAW),
        ({'downscale': True}, (24, 32), Codec.RAW),
        ({'codec': 'jpeg'}, (48, 64), Codec.JPEG),
        ({'codec': 'jpeg', 'downscale': True}, (24, 32), Codec.JPEG),
    ],
)
async def test_images_travel_as_the_parameters_say(settings, size, codec):
    async with Rig(**settings) as rig:
        session = await rig.upstream.open(ONE)
        await session.predict(request())
        (image,) = rig.link.requests[0].images
        assert (image.name, image.codec) == (CAMERA.name, codec)
        frame = image_codec.decode(image)
        assert frame.shape == (*size, 3)
        if size == (48, 64) and codec is Codec.RAW:
            assert np.array_equal(frame, FRAME)


async def test_a_caller_that_has_just_got_a_chunk_is_not_as_urgent_as_one_that_has_nothing():
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        await session.predict(request())
        await session.predict(request())
        first, second = (each.queue_remaining_s for each in rig.link.requests)
        assert first == 0.0
        # three steps at 10 Hz
        assert 0.0 < second <= 0.3


async def test_a_closed_session_is_closed_at_the_router_and_opens_no_more():
    async with Rig() as rig:
        session, waiting = await rig.waiting()
        await session.close()
        await session.close()
        assert (await refusal(waiting)).status is Status.UNAVAILABLE
        assert (await refusal(session.predict(request()))).status is Status.UNAVAILABLE
        (closed,) = rig.link.closed
        assert closed.session_epoch == rig.link.opened[0].session_epoch


@pytest.mark.parametrize('leaves', [True, False])
async def test_a_session_that_is_closed_before_it_is_known_to_be_open_is_closed(leaves):
    async with Rig() as rig:
        session = await rig.upstream.open(ONE)
        session.on_lost(SessionLost('the router closed its replies'))
        is_matched = threading.Event()
        rig.link.wait_until_matched = lambda timeout_s: is_matched.wait(timeout_s)
        caller = asyncio.ensure_future(session.predict(request()))
        await until(lambda: len(rig.link.opened) == 2)
        if leaves:
            caller.cancel()
            await asyncio.wait([caller])
        await session.close()
        is_matched.set()
        await asyncio.wait([caller])
        assert leaves or (await refusal(caller)).status is Status.UNAVAILABLE
        # twice where the router may have opened it after CloseSession
        last = rig.link.opened[1].session_epoch
        assert [each.session_epoch for each in rig.link.closed] == [last] * (1 if leaves else 2)


async def test_a_router_that_serves_no_policy_yet_is_not_used():
    async with Rig() as rig:
        rig.link.is_away = True
        await until(lambda: 'is away' in rig.upstream.problem)
        rig.link.reply = policy_reply(action_names=())
        rig.link.status_text = 'not configured'
        rig.link.come_back()
        await until(lambda: 'not configured' in rig.upstream.problem)
        assert (await refusal(rig.upstream.describe())).status is Status.UNAVAILABLE
        rig.link.reply = policy_reply()
        await until(lambda: not rig.upstream.problem)
        assert (await rig.upstream.describe()).action_names == ('a.pos', 'b.pos')


async def test_a_status_asked_of_a_server_that_ended_does_not_speak_for_its_successor():
    async with Rig() as rig:
        await rig.upstream.open(ONE)
        asked, proceed = threading.Event(), threading.Event()

        def lost_call(timeout_s: float) -> None:
            asked.set()
            proceed.wait(10)
            raise ServerUnreachable('no response')

        rig.link.status = lost_call
        rig.upstream.deposit_presence(Presence.CLOSED)
        await until(asked.is_set)
        # meanwhile the successor opens a session
        session = await rig.upstream.open(TWO)
        proceed.set()
        rig.link.status = FakeLink.status.__get__(rig.link)
        for _ in range(100):
            await asyncio.sleep(0.001)
            assert not rig.upstream.problem
        assert (await session.predict(request())).slot == 'b'


def test_the_end_is_bounded_where_the_router_answers_no_call(monkeypatch):
    """And it comes after calls that end in time: the link that they use is closed next."""
    monkeypatch.setattr(calls, 'CALLS_END_S', 0.05)
    answers, ended = threading.Event(), []

    def hang(request, timeout_s):
        answers.wait(20)
        ended.append(request.client_id)

    async def test():
        rig = Rig()
        rig.link.close = hang
        for caller in (ONE, TWO):
            await rig.upstream.open(caller)
        await rig.upstream.close()
        assert not ended
        answers.set()
        # nothing of it is lost where there is time for it
        monkeypatch.setattr(calls, 'CALLS_END_S', 20.0)
        await rig.upstream.close()
        assert sorted(ended) == sorted((ONE.client_id, TWO.client_id))

    try:
        in_loop(test)
    finally:
        answers.set()
