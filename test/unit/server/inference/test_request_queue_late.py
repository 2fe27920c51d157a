# SPDX-License-Identifier: Apache-2.0
"""A job that somebody waited for in vain: it must not be done later, behind everybody's back."""

from __future__ import annotations

import threading

import pytest

from lerobot_serve.server.inference.request_queue import QueueClosed, RequestQueue


@pytest.fixture
def blocked():
    """A mailbox whose thread is busy until the event is set."""
    request_queue, begun, go_on = RequestQueue(), threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        go_on.wait()

    thread = threading.Thread(target=request_queue.take_batch)
    thread.start()
    request_queue.submit_job(occupy)
    assert begun.wait(10)
    yield request_queue, go_on
    go_on.set()
    request_queue.close()
    thread.join()


def test_what_nobody_waits_for_any_more_is_not_done(blocked):
    request_queue, go_on = blocked
    done = []
    with pytest.raises(TimeoutError, match=r'did not finish within 0\.01 s'):
        request_queue.run_job(lambda: done.append('late'), 0.01)
    go_on.set()
    request_queue.run_job(lambda: done.append('next'))
    assert done == ['next']


def test_closing_passes_over_what_nobody_waits_for(blocked):
    request_queue, _ = blocked
    with pytest.raises(TimeoutError):
        request_queue.run_job(lambda: None, 0.01)
    waited_for = request_queue.submit_job(lambda: None)
    request_queue.close()
    with pytest.raises(QueueClosed):
        waited_for.result(10)
