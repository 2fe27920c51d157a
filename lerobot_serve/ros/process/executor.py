# SPDX-License-Identifier: Apache-2.0
"""The executor of all nodes. Its owner spins it in one thread."""

from __future__ import annotations

import contextlib
from typing import Any

from rclpy.exceptions import InvalidHandle
from rclpy.executors import SingleThreadedExecutor


class RobustExecutor(SingleThreadedExecutor):
    """
    Ignores entities of the wait set that another thread destroys; rclpy's executor raises an
    error.
    """

    def __del__(self) -> None:
        """Do nothing: an executor without shutdown may outlive the context and its handles."""
        with contextlib.suppress(InvalidHandle):
            super().__del__()

    def wait_for_ready_callbacks(self, *arguments: Any, **named: Any) -> Any:
        """Return the next ready callback; called by rclpy."""
        while True:
            with contextlib.suppress(InvalidHandle):
                return super().wait_for_ready_callbacks(*arguments, **named)

    def _take_waitable(self, waitable: Any) -> Any:
        """Return the callback of a waitable; None if it has been destroyed."""
        with contextlib.suppress(InvalidHandle):
            return super()._take_waitable(waitable)
