# SPDX-License-Identifier: Apache-2.0
"""A router refuses what exceeds a quota before it places or sends it, and charges inference."""

from __future__ import annotations

import numpy as np
import pytest
from support.replacing import replace
from support.router.dispatch_rig import answer_bytes, episode_in, MS, Rig, SECOND

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.schema import Status
from lerobot_serve.quotas import parse_quotas
from lerobot_serve.router.data_path.uncharged_requests import (
    CLIENTS_LIMIT,
    REQUESTS_LIMIT,
    SentRequest,
    UnchargedRequests,
)


def with_quota(*lines: str, burst_s: float = 1.0, **settings: object) -> Rig:
    rig = Rig(**settings)
    rig.table.quotas.apply(parse_quotas(lines), burst_s)
    for name in ('robot', 'other'):
        rig.robot(name)
    return rig


def test_a_refused_request_gets_the_status_and_the_time_and_reaches_no_replica():
    rig = with_quota('robot *: 2 requests/s')
    for _ in range(2):
        rig.request(episode=episode_in('a'))
    rig.forget()
    rig.request(episode=episode_in('a'))
    assert not rig.outside.sent
    ((request, status, text),) = rig.outside.failures
    assert (request.seq, status) == (3, Status.QUOTA)
    assert text.startswith('quota of robot * is used up (2 requests/s)')
    assert 0 < rig.outside.retries[-1] < 0.5
    assert rig.drop('quota') == 1
    # the budget of another robot is its own
    rig.request('other', episode_in('a', 1))
    assert len(rig.outside.sent) == 1


def test_a_refused_request_leaves_the_one_before_it_in_flight():
    rig = with_quota('robot *: 1 requests/s')
    raw = rig.request(episode=episode_in('a'))
    ((server, _),) = rig.outside.sent
    rig.request(episode=episode_in('a'))
    rig.answer(server, raw)
    assert [seq for seq, _, _ in rig.replies] == [1]
    assert rig.drop('superseded') == rig.drop('late_reply') == 0


def test_a_refused_episode_is_not_placed():
    rig = with_quota('robot *: 1 requests/s')
    rig.request(episode='first')
    rig.request(episode='second')
    assert [request.episode_id for _, request, _ in rig.outside.decisions] == ['first']
    rig.advance(SECOND)
    rig.request(episode='second')
    assert [request.episode_id for _, request, _ in rig.outside.decisions] == ['first', 'second']


def test_the_execution_report_of_a_refused_request_counts():
    rig = with_quota('robot *: 1 requests/s')
    rig.round_trip(episode=episode_in('a'))
    for actions in (100, 200, 300):
        rig.request(
            episode=episode_in('a'), executed=ExecutionReport(actions=actions, trips=actions // 10)
        )
    assert rig.drop('quota') == 2
    assert rig.stats.slot('a').trips == 20


def with_inference_quota() -> Rig:
    return with_quota('robot *: 100 inference_ms/s')


def send(rig: Rig) -> tuple[str, bytes]:
    """Return which replica a request of the robot is sent to, and its bytes."""
    raw = rig.request(episode=episode_in('a'))
    ((server, _),) = rig.outside.sent
    return server, raw


def reply(rig: Rig, server: str, raw: bytes, inference_ms: float) -> None:
    """Let a replica reply to a request, with so much inference."""
    chunk = wire_chunk.decode(answer_bytes(raw, policy='a@1'))
    chunk = replace(chunk, inference_ms=np.float32(inference_ms))
    rig.dispatcher.on_reply(server, wire_chunk.encode(chunk), rig.now_ns)


def hedged(rig: Rig) -> tuple[str, bytes]:
    """Return the second replica that a request is sent to, and its bytes."""
    rig.warm_up('a')
    rig.forget()
    raw = rig.request(episode=episode_in('a'))
    rig.advance(100 * MS)
    assert len(rig.outside.sent) == 2, 'it is hedged'
    return rig.outside.sent[1][0], raw


def retry_s(rig: Rig) -> float:
    """Return how long the next request of the robot waits, as its refusal says."""
    rig.forget()
    before = len(rig.outside.retries)
    rig.request(episode=episode_in('a'))
    return rig.outside.retries[-1] if len(rig.outside.retries) > before else 0.0


def test_the_inference_of_a_reply_is_charged():
    rig = with_inference_quota()
    server, raw = send(rig)
    reply(rig, server, raw, 300.0)
    assert retry_s(rig) == pytest.approx(2.0)
    rig.advance(int(2.1 * SECOND))
    rig.request(episode=episode_in('a'))
    assert len(rig.outside.sent) == 1


def test_a_server_that_refuses_for_its_own_quota_stays_healthy():
    rig = with_quota(slot_unhealthy_threshold=2)
    for number in range(20):
        raw = rig.request(episode=episode_in('a', number))
        ((server, _),) = rig.outside.sent
        rig.forget()
        rig.answer(server, raw, status=Status.QUOTA)
        # its reply is relayed, with its time
        assert len(rig.outside.replies) == 1
        assert not rig.outside.sent
        rig.forget()
    assert all(slot.is_healthy for slot in rig.slots.values())


def test_a_reply_to_a_request_that_was_replaced_is_charged():
    """A client that does not wait for replies must not get inference for nothing."""
    rig = with_inference_quota()
    raws = [rig.request(episode=episode_in('a')) for _ in range(2)]
    server = rig.outside.sent[0][0]
    reply(rig, server, raws[0], 300.0)
    assert rig.drop('late_reply') == 1
    assert retry_s(rig) == pytest.approx(2.0)


def test_hedges_and_probes_are_not_charged():
    rig = with_inference_quota()
    hedge, raw = hedged(rig)
    reply(rig, hedge, raw, 3000.0)
    assert retry_s(rig) == 0.0
    assert len(rig.outside.sent) == 1


def test_a_reply_that_comes_twice_is_charged_once():
    """A link that was full delivers a chunk, and a copy of it."""
    rig = with_inference_quota()
    server, raw = send(rig)
    for _ in range(3):
        reply(rig, server, raw, 300.0)
    assert rig.drop('late_reply') == 2
    assert retry_s(rig) == pytest.approx(2.0)


def test_a_reply_after_the_time_limit_is_charged():
    rig = with_inference_quota()
    server, raw = send(rig)
    rig.advance(2 * SECOND)
    assert rig.replicas[server].counts['failures'] == 1
    reply(rig, server, raw, 300.0)
    assert rig.drop('late_reply') == 1
    assert retry_s(rig) == pytest.approx(2.0)


def test_a_late_hedge_is_not_charged():
    rig = with_inference_quota()
    hedge, raw = hedged(rig)
    # a newer request replaces the first one at its replica, and is hedged at the other one, too
    rig.request(episode=episode_in('a'))
    rig.advance(2 * SECOND)
    reply(rig, hedge, raw, 3000.0)
    assert rig.drop('late_reply') == 1
    assert retry_s(rig) == 0.0


def test_a_late_probe_is_not_charged():
    rig = with_inference_quota()
    slot = rig.slots['b']
    slot.health.mark_unhealthy('test', rig.now_ns)
    raws = {}
    for _ in range(100):
        raw = rig.request(episode=episode_in('a'))
        raws.update({server: raw for server, _ in rig.outside.sent if server in slot.replicas})
        rig.forget()
        if raws:
            break
        rig.advance(SECOND)
    ((probed, raw),) = raws.items()
    rig.advance(2 * SECOND)
    reply(rig, probed, raw, 3000.0)
    assert rig.drop('late_reply') == 1
    assert retry_s(rig) == 0.0


def test_a_flood_without_waiting_for_replies_is_charged_and_its_memory_bounded():
    rig = with_inference_quota()
    raws = [rig.request(episode=episode_in('a')) for _ in range(10 * REQUESTS_LIMIT)]
    (server,) = {server for server, _ in rig.outside.sent}
    ((requests),) = rig.table.uncharged._sent.values()
    assert len(requests) == REQUESTS_LIMIT
    for raw in raws[-REQUESTS_LIMIT:]:
        reply(rig, server, raw, 10.0)
    # all but the burst of one second
    assert retry_s(rig) == pytest.approx(REQUESTS_LIMIT * 10.0 / 100 - 1.0)
    assert not rig.table.uncharged._sent


def test_a_session_that_is_opened_again_pays_for_the_one_before():
    rig = with_inference_quota()
    server, raw = send(rig)
    rig.robots.close('robot', 1)
    rig.table.in_flight.forget('robot')
    rig.robot('robot', epoch=2)
    reply(rig, server, raw, 300.0)
    rig.forget()
    rig.request(episode=episode_in('a'), epoch=2)
    assert rig.outside.retries[-1] == pytest.approx(2.0)


def test_requests_with_one_number_are_charged_each():
    rig = with_inference_quota()
    raw = rig.request(episode=episode_in('a'))
    rig.dispatcher.on_request(raw, rig.now_ns)
    server = rig.outside.sent[0][0]
    for _ in range(3):
        reply(rig, server, raw, 200.0)
    assert retry_s(rig) == pytest.approx(3.0)


def test_of_clients_those_that_sent_last_are_remembered():
    sent = UnchargedRequests()
    for number in range(CLIENTS_LIMIT + 1):
        sent.add(f'robot {number}', SentRequest('/a1', 1, 1))
    assert len(sent._sent) == CLIENTS_LIMIT
    assert not sent.take('robot 0', SentRequest('/a1', 1, 1))
    assert sent.take('robot 1', SentRequest('/a1', 1, 1))


def test_the_ladder_of_a_robot_that_is_held_back_counts_against_no_slot():
    rig = with_quota('robot *: 1 requests/s')
    episode = episode_in('a')
    rig.request(episode=episode, executed=ExecutionReport(actions=100))
    rig.request(episode=episode, executed=ExecutionReport(actions=110))
    assert rig.drop('quota') == 1
    # what the ladder did until now, and the policy after it
    rig.advance(2 * SECOND)
    rig.request(episode=episode, executed=ExecutionReport(actions=170, fallbacks=60))
    rig.advance(2 * SECOND)
    rig.request(episode=episode, executed=ExecutionReport(actions=230, fallbacks=65))
    slots = [rig.stats.slot(name) for name in 'ab']
    assert sum(slot.commands for slot in slots) == 130
    assert sum(slot.fallbacks for slot in slots) == 5


def test_a_refused_request_reaches_the_observers_as_such():
    rig = with_quota('robot *: 1 requests/s')
    rig.request()
    rig.request(executed=ExecutionReport(actions=1))
    assert len(rig.outside.heard) == 1
    ((_, header, executed),) = rig.outside.refused
    assert (header.seq, executed.actions) == (2, 1)
