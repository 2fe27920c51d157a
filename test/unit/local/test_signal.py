# SPDX-License-Identifier: Apache-2.0
"""The flag of one waiter, as threading.Event is."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from lerobot_serve.local.signal import Signal


@given(st.lists(st.sampled_from(['set', 'clear', 'wait'])))
def test_it_is_what_an_event_is(steps: list[str]) -> None:
    signal, event = Signal(), threading.Event()
    for step in steps:
        if step == 'wait':
            assert signal.wait(0.0) is event.wait(0.0)
        else:
            getattr(signal, step)()
            getattr(event, step)()
        assert signal.is_set() is event.is_set()


def test_no_signal_is_lost_whatever_others_do_meanwhile() -> None:
    signal, turns = Signal(), 2000
    taken = threading.Semaphore(0)

    def disturb() -> None:
        while not is_over.is_set():
            signal.set()

    def wait() -> None:
        for _ in range(turns):
            assert signal.wait(10)
            signal.clear()
            taken.release()

    is_over = threading.Event()
    threads = [threading.Thread(target=each, daemon=True) for each in (disturb, wait)]
    for thread in threads:
        thread.start()
    assert all(taken.acquire(timeout=10) for _ in range(turns))
    is_over.set()
    for thread in threads:
        thread.join(10)


def test_a_wait_lasts_until_its_end_also_when_it_is_set_and_cleared_meanwhile() -> None:
    signal = Signal()
    ended: list[tuple[bool, float]] = []

    def wait() -> None:
        begin_s = time.monotonic()
        ended.append((signal.wait(0.2), time.monotonic() - begin_s))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    # as another thread that is about to open the gate when a third one clears the flag
    signal._gate.release()
    thread.join(10)
    ((was_set, lasted_s),) = ended
    assert not was_set
    assert lasted_s >= 0.2
