# SPDX-License-Identifier: Apache-2.0
"""A quick policy serves a request in the thread that receives it; one thread has it at a time."""

from __future__ import annotations

from itertools import product
import threading

import pytest
from support.server.request_queue_rig import inference, name_of, queued, thread, WAIT_S
from support.server.server_core_rig import request, Rig

from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.core import RECEIVING_THREAD_SERVICE_S
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.inference.schedulers import DynamicBatching

GOODBYE = SessionRefused(Refusal.DRAINING, 'the server is going away')
STATES = ('queued', 'job', 'busy', 'taken', 'closed', 'waits_for_more')


def in_state(states: dict[str, bool]) -> RequestQueue:
    """Return a queue that is in each of the states that are True."""
    request_queue = RequestQueue(clock=lambda: 0)
    if states['busy']:
        request_queue.put(queued('first'))
        request_queue.take_batch()
    if states['taken']:
        # as another thread that receives
        request_queue._taken = True
    if states['waits_for_more']:
        request_queue.set_scheduler(DynamicBatching(2, 1), lambda: 2)
    if states['queued']:
        request_queue.put(queued('other'))
    if states['job']:
        request_queue.submit_job(lambda: None)
    if states['closed']:
        request_queue.close()
    return request_queue


@pytest.mark.parametrize('on', product((False, True), repeat=len(STATES)))
def test_a_request_is_taken_only_where_nothing_else_is_to_do(on):
    request_queue = in_state(dict(zip(STATES, on, strict=True)))
    assert (request_queue.take_if_idle(queued('a')) is not None) == (not any(on))


def test_a_drain_that_begins_while_a_request_is_taken_refuses_it():
    rig = Rig()
    rig.open()
    take = rig.request_queue.take_if_idle

    def take_late(queued: object) -> object:
        found = take(queued)
        rig.core.stop_accepting(GOODBYE)
        return found

    rig.request_queue.take_if_idle = take_late
    rig.core._is_quick = lambda: True
    arrival = rig.core.enqueue(request(), 5, may_serve=True)
    assert arrival.refusal.status == Status.DRAINING
    assert rig.drops == {'draining': 1}
    # the queue is free for the thread that unloads the policy
    assert not rig.request_queue._taken


def test_what_is_taken_has_what_a_queued_request_has():
    request_queue = RequestQueue()
    for seq in (1, 2):
        request_queue.put(queued('a', seq))
    # the second superseded the first
    request_queue.take_batch()
    request_queue._busy = False
    taken = request_queue.take_if_idle(queued('a', 3, at=7))
    assert (taken.header.seq, taken.queued_ns, taken.superseded) == (3, 7, 1)


@pytest.mark.parametrize('closed', [False, True])
def test_the_inference_thread_waits_for_the_other(closed):
    request_queue, steps = RequestQueue(), []

    def infer() -> None:
        batch = request_queue.take_batch()
        steps.append(batch and name_of(batch[0]))

    assert request_queue.take_if_idle(queued('a'))
    with thread(infer):
        if closed:
            request_queue.close()
        else:
            request_queue.put(queued('b'))
        assert not threading.Event().wait(0.05)
        assert steps == []
        request_queue.give_back()
    assert steps == [None if closed else 'b']


def test_a_drain_waits_for_what_is_served_elsewhere():
    request_queue, idle = RequestQueue(), []
    request_queue.take_if_idle(queued('a'))
    assert not request_queue.wait_until_idle(0.0)
    with thread(lambda: idle.append(request_queue.wait_until_idle(WAIT_S))):
        request_queue.give_back()
    assert idle == [True]


def test_two_threads_never_have_the_policy_at_once():
    request_queue, holders, overlaps, served = RequestQueue(), [], [], []

    def use(batch) -> None:
        holders.append(threading.get_ident())
        overlaps.extend(holders[1:])
        served.extend((name_of(one), one.header.seq) for one in batch)
        holders.pop()

    def receive(name: str) -> None:
        for seq in range(2000):
            taken = request_queue.take_if_idle(queued(name, seq))
            if taken:
                use([taken])
                request_queue.give_back()
            else:
                request_queue.put(queued(name, seq))

    with inference(request_queue, use):
        with thread(lambda: receive('a')), thread(lambda: receive('b')):
            for _ in range(200):
                request_queue.run_job(lambda: use([]), WAIT_S)
        assert request_queue.wait_until_idle(WAIT_S)
    assert not overlaps
    # the newest of each client is served, and none twice
    assert {('a', 1999), ('b', 1999)} <= set(served)
    assert len(served) == len(set(served))


def rig_of(any_thread: bool, service_s: float) -> Rig:
    rig = Rig(any_thread=any_thread)
    rig.statistics.reset_for_policy(service_s)
    rig.open()
    return rig


@pytest.mark.parametrize('may_serve', [False, True])
@pytest.mark.parametrize('any_thread', [False, True])
@pytest.mark.parametrize('service_s', [0.0, RECEIVING_THREAD_SERVICE_S, 0.0021, 1.0])
def test_only_a_quick_policy_without_a_thread_of_its_own(may_serve, any_thread, service_s):
    rig = rig_of(any_thread, service_s)
    arrival = rig.core.enqueue(request(), 5, may_serve=may_serve)
    assert bool(arrival) == (may_serve and any_thread and service_s <= RECEIVING_THREAD_SERVICE_S)
    assert rig.core.waiting_requests == (0 if arrival else 1)
    assert rig.statistics.requests == 1
    if arrival:
        assert arrival.refusal is None
        rig.request_queue.give_back()


def test_its_session_is_closed_meanwhile():
    rig = rig_of(any_thread=True, service_s=0.0)
    taken, _ = rig.core.enqueue(request(), 5, may_serve=True)
    rig.core.end_sessions([rig.core.sessions.close('robot_1', taken.header.session_epoch)], 'test')
    rig.worker.process([taken])
    assert not rig.core.is_open(taken)
    # the state of a session is reset after a prediction, not during it
    assert rig.resets == []
    rig.request_queue.give_back()
    with inference(rig.request_queue):
        rig.request_queue.run_job(lambda: None, WAIT_S)
    assert rig.resets == [taken.session.session_id]
