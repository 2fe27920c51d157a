# SPDX-License-Identifier: Apache-2.0
"""
A body that blocks, run in a thread of its own that moves only while the driver waits for it.

So two pieces of code that each want to be the main loop take turns, and what happens is decided by
the driver alone: the same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
import traceback


class SteppedThread:
    """The driver calls `go`, the body `wait`. Built and ended by the driver's thread."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._ours, self._theirs = threading.Lock(), threading.Lock()
        self._ours.acquire()
        self._theirs.acquire()
        self._failure: BaseException | None = None
        self.ended = False
        self._thread = threading.Thread(target=self._run, name='turns', daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Let the body go on until it waits or ends. Raises what it raised."""
        if self.ended:
            return
        self._theirs.release()
        self._ours.acquire()
        if self.ended:
            self._thread.join()
        if self._failure:
            failure, self._failure = self._failure, None
            raise failure

    def wait(self) -> None:
        """The body: let the driver go on."""
        self._ours.release()
        self._theirs.acquire()

    def _run(self) -> None:
        self._theirs.acquire()
        try:
            self._body()
        except BaseException as error:
            error.__notes__ = [*getattr(error, '__notes__', []), traceback.format_exc()]
            self._failure = error
        self.ended = True
        self._ours.release()
