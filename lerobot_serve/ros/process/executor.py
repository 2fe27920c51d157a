# SPDX-License-Identifier: Apache-2.0
"""
The executor of all nodes, which its owner spins in one thread, and a future that a coroutine of it
awaits and another thread completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import time
from typing import Any

from rclpy.exceptions import InvalidHandle
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.task import Future


class ExecutorFuture(Future):
    """Any thread sets the result or the exception, directly or with `complete_with`."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor=executor)
        # rclpy resumes a waiting coroutine only when the executor wakes
        self._wake = executor.wake

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        self._wake()

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(exception)
        self._wake()

    def complete_with(self, work: Callable[[], Any]) -> None:
        """Run `work` and set its result or its exception."""
        try:
            result = work()
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(result)


DESTROYED = 'pointer is invalid'


class RobustExecutor(SingleThreadedExecutor):
    """
    Ignores entities of the wait set that another thread destroys; rclpy's executor raises an
    error.

    `rest_s` is a rest before each wait. rclpy builds its wait set of all entities in Python: for a
    node with many subscriptions, which has time, one wait for all that comes within the rest takes
    less CPU than one for each message.
    """

    rest_s: float = 0.0

    def __del__(self) -> None:
        """Do nothing: an executor without shutdown may outlive the context and its handles."""
        with contextlib.suppress(InvalidHandle):
            super().__del__()

    def wait_for_ready_callbacks(self, *arguments: Any, **named: Any) -> Any:
        """Return the next ready callback; called by rclpy."""
        while True:
            try:
                return super().wait_for_ready_callbacks(*arguments, **named)
            except InvalidHandle:
                pass
            except rclpy_implementation.RCLError as error:
                # a client or server of an action, which rclpy destroys first and then removes
                if DESTROYED not in str(error):
                    raise

    def _wait_for_ready_callbacks(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        """Rest, then yield the callbacks of one wait set; called by rclpy."""
        if self.rest_s:
            time.sleep(self.rest_s)
        yield from super()._wait_for_ready_callbacks(*arguments, **named)

    def _take_waitable(self, waitable: Any) -> Any:
        """Return the callback of a waitable; None if it has been destroyed."""
        with contextlib.suppress(InvalidHandle):
            return super()._take_waitable(waitable)
