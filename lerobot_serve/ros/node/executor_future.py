# SPDX-License-Identifier: Apache-2.0
"""A future that a coroutine of the executor awaits and another thread completes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.executors import Executor
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
