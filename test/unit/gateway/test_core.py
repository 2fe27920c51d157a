# SPDX-License-Identifier: Apache-2.0
"""Sessions of callers: one each, admitted, counted, closed when idle, drained at the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.gateway.gateway_rig import CALLER, GatewayRig, refusal, request, until

from lerobot_serve.gateway import core
from lerobot_serve.gateway.callers.caller import Caller, NO_CAGE
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import GIVES_WAY_S, RETRY_AFTER_S
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT, FakeSession

OTHER = replace(CALLER, address='127.0.0.1:5001')
AWAY = PredictionError(Status.UNAVAILABLE, 'no server', 1.0)


async def test_each_caller_has_one_session_of_its_own():
    rig = GatewayRig()
    first, again, other = await asyncio.gather(
        *(rig.gateway.session(caller) for caller in (CALLER, CALLER, OTHER))
    )
    assert first is again is not other
    assert rig.upstream.opened == 2
    prediction = await first.predict(request())
    assert prediction.actions[:, 0].tolist() == [0, 1, 2, 3]
    assert [who for who, _ in rig.upstream.requests] == [CALLER.client_id]
    assert rig.gateway.counters.requests == {('http', 'ok'): 1}
    assert rig.gateway.counters.callers == {'http': 2}
    assert rig.gateway.counters.latencies['http'].cumulative()[-1] == ('+Inf', 1.0)


async def test_callers_above_the_limit_are_refused_until_one_leaves():
    rig = GatewayRig(max_callers=1)
    await rig.gateway.session(CALLER)
    refused = await refusal(rig.gateway.session(OTHER))
    assert (refused.status, refused.retry_after_s) == (Status.OVERLOADED, RETRY_AFTER_S)
    assert 'max_callers is 1' in refused.text
    assert rig.gateway.counters.refused == {('http', 'max_callers'): 1}
    await rig.gateway.release(CALLER)
    assert rig.gateway.callers == ()
    await rig.gateway.session(OTHER)
    assert rig.gateway.callers == (OTHER,)


async def test_where_all_places_are_taken_the_caller_that_rests_longest_gives_way():
    rig = GatewayRig(max_callers=2)
    await (await rig.gateway.session(CALLER)).predict(request())
    rig.now_s += GIVES_WAY_S / 2
    await (await rig.gateway.session(OTHER)).predict(request())
    third = replace(CALLER, address='127.0.0.1:5002')
    assert (await refusal(rig.gateway.session(third))).status is Status.OVERLOADED
    rig.now_s += GIVES_WAY_S / 2
    await (await rig.gateway.session(third)).predict(request())
    assert rig.gateway.callers == (OTHER, third)
    assert rig.gateway.counters.refused['http', 'gave_way'] == 1
    # the one that gave way comes back once another one rests
    rig.now_s += GIVES_WAY_S
    await (await rig.gateway.session(CALLER)).predict(request())
    assert rig.gateway.callers == (third, CALLER)
    await rig.gateway.drain()
    assert rig.upstream.open_sessions == {}


async def test_a_session_that_cannot_be_opened_leaves_no_place_taken():
    rig = GatewayRig(max_callers=1)
    rig.upstream.fail_with = AWAY
    assert (await refusal(rig.gateway.session(CALLER))).status is Status.UNAVAILABLE
    assert rig.gateway.callers == ()
    assert rig.gateway.counters.refused == {('http', 'unavailable'): 1}
    rig.upstream.fail_with = None
    await rig.gateway.session(OTHER)


async def test_a_session_that_opens_slowly_is_awaited_as_long_as_a_request():
    rig = GatewayRig(request_timeout_s=0.02)
    may_open = rig.opens_later()
    refused = await refusal(rig.gateway.session(CALLER))
    assert refused.status is Status.UNAVAILABLE
    assert refused.retry_after_s
    assert rig.gateway.counters.refused == {('http', 'slow_opening'): 1}
    may_open.set()
    await rig.gateway.session(CALLER)
    assert rig.upstream.opened == 1


async def test_an_opening_that_fails_late_leaves_the_next_session_of_its_caller():
    rig = GatewayRig()
    open_now, fails = rig.upstream.open, rig.opens_later()
    rig.upstream.fail_with = AWAY
    first = asyncio.ensure_future(rig.gateway.session(CALLER))
    await asyncio.sleep(0)
    leaving = asyncio.ensure_future(rig.gateway.release(CALLER))
    await asyncio.sleep(0)
    rig.upstream.open, rig.upstream.fail_with = open_now, None
    session = await rig.gateway.session(CALLER)
    rig.upstream.fail_with = AWAY
    fails.set()
    assert (await refusal(first)).status is Status.UNAVAILABLE
    await leaving
    assert rig.gateway.callers == (CALLER,)
    assert await rig.gateway.session(CALLER) is session


async def test_the_newest_request_of_a_caller_supersedes_one_that_waits_but_not_one_of_another():
    rig = GatewayRig()
    session, other = await rig.gateway.session(CALLER), await rig.gateway.session(OTHER)
    rig.upstream.hold()
    asked = []
    for each in (session, session, session, other):
        asked.append(asyncio.ensure_future(each.predict(request())))
        await asyncio.sleep(0)
    assert (await refusal(asked[1])).status is Status.SUPERSEDED
    rig.upstream.release()
    for answered in (asked[0], asked[2], asked[3]):
        assert (await answered).slot == 'prod'
    assert rig.gateway.counters.requests == {('http', 'superseded'): 1, ('http', 'ok'): 3}


@pytest.mark.parametrize(('wanted_s', 'limit_s'), [(0.0, 0.05), (60.0, 0.05), (0.02, 0.02)])
async def test_a_request_has_a_limit_that_a_caller_can_only_shorten(wanted_s, limit_s):
    rig = GatewayRig(request_timeout_s=0.05)
    session = await rig.gateway.session(CALLER)
    rig.upstream.hold()
    refused = await refusal(session.predict(request(timeout_s=wanted_s)))
    assert refused.status is Status.TOO_LATE
    assert f'within {limit_s:g} s' in refused.text
    assert rig.upstream.requests[0][1].timeout_s == pytest.approx(limit_s)
    # a later request gets its turn
    rig.upstream.release()
    await session.predict(request())
    assert rig.gateway.counters.requests == {('http', 'too_late'): 1, ('http', 'ok'): 1}


async def test_a_waiting_request_that_runs_out_of_time_is_never_sent():
    rig = GatewayRig()
    session, first = await rig.running_request()
    assert (await refusal(session.predict(request(timeout_s=0.01)))).status is Status.TOO_LATE
    rig.upstream.release()
    await first
    assert len(rig.upstream.requests) == 1


async def test_a_request_whose_policy_is_replaced_while_it_waits_is_not_sent():
    rig = GatewayRig()
    session = await rig.gateway.session(CALLER)
    rig.upstream.hold()
    first, waiting = (asyncio.ensure_future(session.predict(request())) for _ in range(2))
    await until(lambda: rig.upstream.requests)
    names = EXAMPLE_CONTRACT.state_names
    rig.upstream.contract = replace(EXAMPLE_CONTRACT, state_names=names[::-1])
    rig.upstream.release()
    await first
    refused = await refusal(waiting)
    assert refused.status is Status.UNAVAILABLE
    assert 'are gripper.pos, joint_2.pos, joint_1.pos now' in refused.text
    assert len(rig.upstream.requests) == 1
    await session.predict(request())


async def test_a_caller_that_leaves_during_a_request_is_counted_and_its_session_ends():
    rig = GatewayRig()
    session, running = await rig.running_request()
    running.cancel()
    await asyncio.wait([running])
    await rig.gateway.release(CALLER)
    assert rig.gateway.counters.requests == {('http', 'cancelled'): 1}
    assert not rig.upstream.open_sessions
    assert (await refusal(session.predict(request()))).status is Status.UNAVAILABLE


@pytest.fixture
def may_close(monkeypatch) -> asyncio.Event:
    """The session of CALLER closes once it is set."""
    event, close = asyncio.Event(), FakeSession.close

    async def close_late(session):
        if session.client_id == CALLER.client_id:
            await event.wait()
        await close(session)

    monkeypatch.setattr(FakeSession, 'close', close_late)
    return event


async def test_a_caller_is_counted_until_its_session_is_closed_also_where_nobody_waits(may_close):
    rig = GatewayRig()
    await rig.gateway.session(CALLER)
    leaving = asyncio.ensure_future(rig.gateway.release(CALLER))
    await asyncio.sleep(0)
    assert rig.gateway.counters.callers == {'http': 1}
    leaving.cancel()
    await asyncio.wait([leaving])
    may_close.set()
    await until(lambda: not rig.upstream.open_sessions)
    assert rig.gateway.counters.callers == {'http': 0}


async def test_a_session_that_opens_while_its_caller_leaves_is_closed_in_any_case():
    rig = GatewayRig()
    may_open = rig.opens_later()
    opening = asyncio.ensure_future(rig.gateway.session(CALLER))
    await until(lambda: rig.gateway.callers)
    leaving = asyncio.ensure_future(rig.gateway.release(CALLER))
    await until(lambda: not rig.gateway.callers)
    leaving.cancel()
    await asyncio.wait([leaving])
    may_open.set()
    await opening
    await until(lambda: not rig.upstream.open_sessions)
    assert rig.gateway.counters.callers == {'http': 0}


async def test_a_session_without_requests_is_closed_and_opened_again_for_the_next_one():
    rig = GatewayRig(idle_timeout_s=10.0)
    busy = await rig.gateway.session(CALLER)
    await rig.gateway.session(OTHER)
    rig.now_s += 9
    await busy.predict(request())
    rig.now_s += 1
    await rig.gateway.close_idle()
    assert rig.gateway.callers == (CALLER,)
    assert [*rig.upstream.open_sessions] == [CALLER.client_id]
    await (await rig.gateway.session(OTHER)).predict(request())
    assert rig.upstream.opened == 3


@pytest.mark.parametrize('is_replaced', [False, True])
async def test_a_session_that_works_again_while_another_one_ends_is_not_closed(
    may_close, is_replaced
):
    rig = GatewayRig(idle_timeout_s=10.0)
    await rig.gateway.session(CALLER)
    session = await rig.gateway.session(OTHER)
    rig.now_s += 10
    closing = asyncio.ensure_future(rig.gateway.close_idle())
    await until(lambda: rig.gateway.callers == (OTHER,))
    if is_replaced:
        await rig.gateway.release(OTHER)
        session = await rig.gateway.session(OTHER)
    await session.predict(request())
    may_close.set()
    await closing
    assert rig.gateway.callers == (OTHER,)
    assert [*rig.upstream.open_sessions] == [OTHER.client_id]
    assert await rig.gateway.session(OTHER) is session
    await session.predict(request())


async def test_a_session_with_a_running_request_is_not_idle():
    rig = GatewayRig(idle_timeout_s=10.0)
    _, running = await rig.running_request()
    rig.now_s += 100
    await rig.gateway.close_idle()
    assert rig.gateway.callers == (CALLER,)
    rig.upstream.release()
    await running


async def test_the_log_says_once_for_each_caller_that_it_has_no_cage():
    rig = GatewayRig()
    session = await rig.gateway.session(CALLER)
    await rig.gateway.session(CALLER)
    await session.predict(request())
    await rig.gateway.release(CALLER)
    await rig.gateway.release(CALLER)
    begin, end = rig.log.lines
    assert begin == f'{CALLER.client_id}: session opened; {NO_CAGE}'
    assert end == f'{CALLER.client_id}: session ended after 1 requests: it left; {NO_CAGE}'


async def test_draining_answers_what_runs_refuses_what_comes_and_ends_all():
    rig = GatewayRig()
    _, running = await rig.running_request()
    draining = asyncio.ensure_future(rig.gateway.drain())
    await asyncio.sleep(0)
    # also one with a session
    for caller in (OTHER, CALLER):
        refused = await refusal(rig.gateway.session(caller))
        assert refused.status is Status.UNAVAILABLE
        assert 'shutting down' in refused.text
    rig.upstream.release()
    await draining
    assert (await running).slot == 'prod'
    assert not rig.upstream.open_sessions
    assert rig.gateway.callers == ()


async def test_draining_ends_in_time_without_an_answer():
    rig = GatewayRig(drain_timeout_s=0.01)
    _, running = await rig.running_request()
    await rig.gateway.drain()
    assert not rig.upstream.open_sessions
    running.cancel()
    await asyncio.wait([running])


async def test_the_end_waits_for_no_server_and_closes_all_sessions_at_the_same_time(monkeypatch):
    rig = GatewayRig()
    closing: list[str] = []

    async def hang(session: FakeSession) -> None:
        closing.append(session.client_id)
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeSession, 'close', hang)
    monkeypatch.setattr(rig.upstream, 'close', lambda: asyncio.sleep(0))
    monkeypatch.setattr(core, 'CLOSE_LIMIT_S', 0.02)
    for caller in (CALLER, OTHER):
        await rig.gateway.session(caller)
    await rig.gateway.drain()
    assert sorted(closing) == sorted(caller.client_id for caller in (CALLER, OTHER))
    assert 'did not close 2 of 2 sessions within 0.02 s' in rig.log.lines[-1]


def test_a_caller_is_equal_to_itself_only():
    assert Caller('http', '127.0.0.1:5000', 'arm') == CALLER
    assert OTHER != CALLER
