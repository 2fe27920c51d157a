"""A job that somebody waited for in vain: it must not be done later, behind everybody's back."""

from __future__ import annotations

import threading

import pytest

from lerobot_serve.server.inference.request_queue import QueueClosed, RequestQueue


@pytest.fixture
def blocked():
    """A mailbox whose thread is busy until the event is set."""
    mailbox, begun, go_on = RequestQueue(), threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        go_on.wait()

    thread = threading.Thread(target=mailbox.take)
    thread.start()
    mailbox.post(occupy)
    assert begun.wait(10)
    yield mailbox, go_on
    go_on.set()
    mailbox.close()
    thread.join()


def test_what_nobody_waits_for_any_more_is_not_done(blocked):
    mailbox, go_on = blocked
    done = []
    with pytest.raises(TimeoutError, match=r'still at work after 0\.01 s'):
        mailbox.call(lambda: done.append('late'), 0.01)
    go_on.set()
    mailbox.call(lambda: done.append('next'))
    assert done == ['next']


def test_closing_passes_over_what_nobody_waits_for(blocked):
    mailbox, _ = blocked
    with pytest.raises(TimeoutError):
        mailbox.call(lambda: None, 0.01)
    waited_for = mailbox.post(lambda: None)
    mailbox.close()
    with pytest.raises(QueueClosed):
        waited_for.result(10)
