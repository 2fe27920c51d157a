# SPDX-License-Identifier: Apache-2.0
"""Work in another thread, for the thread of a test."""

from __future__ import annotations

from collections.abc import Callable
import threading


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run a function in a thread; its result or error is in the list."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results
