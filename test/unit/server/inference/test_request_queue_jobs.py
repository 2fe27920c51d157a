# SPDX-License-Identifier: Apache-2.0
"""Jobs for the inference thread: they go first, and what they do belongs to who asked for them."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from support.server.request_queue_rig import inference, name_of, queued, thread, WAIT_S

from lerobot_serve.server.inference.request_queue import QueueClosed, RequestQueue


class Thing:
    """Something that can be seen to go."""


def test_jobs_go_first_in_their_order():
    request_queue, done = RequestQueue(), []
    request_queue.put(queued('a'))
    futures = [request_queue.submit_job(lambda i=i: done.append(i) or i) for i in range(3)]
    (taken,) = request_queue.take_batch()
    assert name_of(taken) == 'a'
    assert done == [0, 1, 2]
    assert [future.result(0) for future in futures] == [0, 1, 2]


def test_a_job_wakes_the_thread_and_runs_in_it():
    request_queue = RequestQueue()
    with inference(request_queue):
        assert request_queue.run_job(threading.get_ident, WAIT_S) != threading.get_ident()


def test_the_error_of_a_job_belongs_to_the_caller():
    request_queue, answered = RequestQueue(), threading.Event()
    with inference(request_queue, lambda batch: answered.set()):
        with pytest.raises(ZeroDivisionError):
            request_queue.run_job(lambda: 1 / 0, WAIT_S)
        request_queue.put(queued('a'))
        assert answered.wait(WAIT_S)


def test_a_call_that_takes_too_long_says_so_and_nothing_else_is_lost():
    request_queue, go = RequestQueue(), threading.Event()
    with inference(request_queue):
        request_queue.submit_job(lambda: go.wait(WAIT_S))
        with pytest.raises(TimeoutError):
            request_queue.run_job(lambda: 'late', 0.0)
        go.set()
        assert request_queue.run_job(lambda: 'next', WAIT_S) == 'next'


def test_close_fails_what_is_pending_and_what_comes_later():
    request_queue = RequestQueue()
    pending = request_queue.submit_job(lambda: 'never')
    request_queue.close()
    for future in (pending, request_queue.submit_job(lambda: 'never')):
        with pytest.raises(QueueClosed, match='shutting down'):
            future.result(0)
    assert request_queue.take_batch() is None


def test_it_is_idle_only_when_nothing_is_being_answered():
    request_queue = RequestQueue()
    assert request_queue.wait_until_idle(0.0)
    request_queue.put(queued('a'))
    assert not request_queue.wait_until_idle(0.0)
    request_queue.take_batch()
    assert not request_queue.wait_until_idle(0.0)
    request_queue.submit_job(lambda: idle.append(request_queue.wait_until_idle(0.0)))
    idle = []
    request_queue.put(queued('a'))
    request_queue.take_batch()
    assert idle == [False]
    with thread(request_queue.take_batch):
        # taking again says that the last is done
        assert request_queue.wait_until_idle(WAIT_S)
        request_queue.close()


def test_a_closed_mailbox_keeps_nobody_waiting():
    request_queue = RequestQueue()
    request_queue.put(queued('a'))
    request_queue.take_batch()
    request_queue.close()
    assert request_queue.wait_until_idle(0.0)


def test_what_a_job_made_is_the_callers_alone():
    request_queue = RequestQueue()
    with inference(request_queue):
        made = request_queue.run_job(Thing, WAIT_S)
        watched = weakref.ref(made)
        # then the thread waits in take
        assert request_queue.wait_until_idle(WAIT_S)
        del made
        assert watched() is None


def test_what_a_failed_job_held_goes_with_its_error():
    request_queue, watched = RequestQueue(), []

    def load() -> None:
        half_loaded = Thing()
        watched.append(weakref.ref(half_loaded))
        raise MemoryError

    gc.disable()
    try:
        with inference(request_queue):
            with contextlib.suppress(MemoryError):
                request_queue.run_job(load, WAIT_S)
            assert request_queue.wait_until_idle(WAIT_S)
            assert watched[0]() is None
    finally:
        gc.enable()
