# SPDX-License-Identifier: Apache-2.0
"""
What a thread that loads a policy beside the served one must leave alone: the numbers that served
requests draw, the priority of the threads that stay, and the CPUs of those that serve. No torch.
Any thread.

At most one thread loads beside a served policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
from dataclasses import dataclass
import threading
import time
from typing import TypeVar

T = TypeVar('T')
# an eighth of an inference of ACT on two cores, and enough for the scheduler to see an idle CPU
WORK_S, PAUSE_S = 0.003, 0.0005


@dataclass(slots=True)
class _Loading:
    """
    A thread that loads, one that keeps the priority which that thread has given up, and when the
    thread that loads has paused.
    """

    thread: int
    helper: ThreadPoolExecutor
    paused_s: float = 0.0


_loading: _Loading | None = None


@contextlib.contextmanager
def beside_served_policy() -> Iterator[None]:
    """Mark the calling thread as the one that loads; enter it before its priority is lowered."""
    global _loading
    with ThreadPoolExecutor(1, 'serving priority') as helper:
        # starts its thread now: one that is started later inherits the lower priority
        helper.submit(int).result()
        _loading = _Loading(threading.get_ident(), helper)
        try:
            yield
        finally:
            _loading = None


def is_beside() -> bool:
    """Return whether the calling thread loads a policy beside the served one."""
    return _own_loading() is not None


def _own_loading() -> _Loading | None:
    loading = _loading
    return loading if loading and loading.thread == threading.get_ident() else None


def another_thread_loads() -> bool:
    """Return whether a thread other than the calling one loads a policy."""
    loading = _loading
    return loading is not None and loading.thread != threading.get_ident()


def at_serving_priority(work: Callable[[], T]) -> T:
    """
    Run `work`, which starts threads that stay with the policy; return its result or raise its
    error. Linux gives a new thread the priority of the one that starts it, and a lower one cannot
    be raised again without a privilege.
    """
    loading = _own_loading()
    return loading.helper.submit(work).result() if loading else work()


def give_way() -> None:
    """
    Pause for a moment, now and then, if the calling thread loads a policy; long work calls it
    between its parts. Two threads of one inference that the scheduler has put onto one CPU wait
    for each other; it moves one of them to another CPU at once when that falls idle, and only
    after a tenth of a second while the thread that loads keeps it busy.
    """
    loading = _own_loading()
    if loading and time.monotonic() - loading.paused_s >= WORK_S:
        time.sleep(PAUSE_S)
        loading.paused_s = time.monotonic()
