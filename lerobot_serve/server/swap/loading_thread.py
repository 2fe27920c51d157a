# SPDX-License-Identifier: Apache-2.0
"""Keep a thread that loads a policy from delaying the one that serves another. Any thread."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import sys
import threading

# of the processor: the scheduler prefers the threads that serve
NICENESS = 10
# of the interpreter: the thread that serves waits this long for its lock, by default 5 ms
SWITCH_INTERVAL_S = 0.0005


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Run the block behind the other threads; the calling thread stays behind them for good."""
    with contextlib.suppress(OSError):
        # Linux: of this thread and those that it starts
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_INTERVAL_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
