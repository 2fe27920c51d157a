"""Jobs for the inference thread: they go first, and what they do belongs to who asked for them."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from support.server.request_queue_rig import inference, mail, name_of, thread, WAIT_S

from lerobot_serve.server.inference.request_queue import QueueClosed, RequestQueue


class Thing:
    """Something that can be seen to go."""


def test_jobs_go_first_in_their_order():
    mailbox, done = RequestQueue(), []
    mailbox.put(mail('a'))
    futures = [mailbox.post(lambda i=i: done.append(i) or i) for i in range(3)]
    (taken,) = mailbox.take()
    assert name_of(taken) == 'a'
    assert done == [0, 1, 2]
    assert [future.result(0) for future in futures] == [0, 1, 2]


def test_a_job_wakes_the_thread_and_runs_in_it():
    mailbox = RequestQueue()
    with inference(mailbox):
        assert mailbox.call(threading.get_ident, WAIT_S) != threading.get_ident()


def test_the_error_of_a_job_belongs_to_the_caller():
    mailbox, answered = RequestQueue(), threading.Event()
    with inference(mailbox, lambda mails: answered.set()):
        with pytest.raises(ZeroDivisionError):
            mailbox.call(lambda: 1 / 0, WAIT_S)
        mailbox.put(mail('a'))
        assert answered.wait(WAIT_S)


def test_a_call_that_takes_too_long_says_so_and_nothing_else_is_lost():
    mailbox, go = RequestQueue(), threading.Event()
    with inference(mailbox):
        mailbox.post(lambda: go.wait(WAIT_S))
        with pytest.raises(TimeoutError):
            mailbox.call(lambda: 'late', 0.0)
        go.set()
        assert mailbox.call(lambda: 'next', WAIT_S) == 'next'


def test_close_fails_what_is_pending_and_what_comes_later():
    mailbox = RequestQueue()
    pending = mailbox.post(lambda: 'never')
    mailbox.close()
    for future in (pending, mailbox.post(lambda: 'never')):
        with pytest.raises(QueueClosed, match='shutting down'):
            future.result(0)
    assert mailbox.take() is None


def test_it_is_idle_only_when_nothing_is_being_answered():
    mailbox = RequestQueue()
    assert mailbox.wait_until_idle(0.0)
    mailbox.put(mail('a'))
    assert not mailbox.wait_until_idle(0.0)
    mailbox.take()
    assert not mailbox.wait_until_idle(0.0)
    mailbox.post(lambda: idle.append(mailbox.wait_until_idle(0.0)))
    idle = []
    mailbox.put(mail('a'))
    mailbox.take()
    assert idle == [False]
    with thread(mailbox.take):
        # taking again says that the last is done
        assert mailbox.wait_until_idle(WAIT_S)
        mailbox.close()


def test_a_closed_mailbox_keeps_nobody_waiting():
    mailbox = RequestQueue()
    mailbox.put(mail('a'))
    mailbox.take()
    mailbox.close()
    assert mailbox.wait_until_idle(0.0)


def test_what_a_job_made_is_the_callers_alone():
    mailbox = RequestQueue()
    with inference(mailbox):
        made = mailbox.call(Thing, WAIT_S)
        watched = weakref.ref(made)
        # then the thread waits in take
        assert mailbox.wait_until_idle(WAIT_S)
        del made
        assert watched() is None


def test_what_a_failed_job_held_goes_with_its_error():
    mailbox, watched = RequestQueue(), []

    def load() -> None:
        half_loaded = Thing()
        watched.append(weakref.ref(half_loaded))
        raise MemoryError

    gc.disable()
    try:
        with inference(mailbox):
            with contextlib.suppress(MemoryError):
                mailbox.call(load, WAIT_S)
            assert mailbox.wait_until_idle(WAIT_S)
            assert watched[0]() is None
    finally:
        gc.enable()
