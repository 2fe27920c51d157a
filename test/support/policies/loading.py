# SPDX-License-Identifier: Apache-2.0
"""A thread that loads a policy beside the one that a test serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import threading

from lerobot_serve.policies.runtime.loading_beside import beside_served_policy

LIMIT_S = 30.0


@contextlib.contextmanager
def loading_elsewhere(work: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Load in another thread, which does `work` again and again until the context ends."""
    began, end = threading.Event(), threading.Event()

    def load() -> None:
        with beside_served_policy():
            while not end.wait(0.0005):
                work()
                began.set()

    thread = threading.Thread(target=load)
    thread.start()
    assert began.wait(LIMIT_S)
    try:
        yield
    finally:
        end.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
