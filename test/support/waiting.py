# SPDX-License-Identifier: Apache-2.0
"""Waiting for an event with a bound."""

from __future__ import annotations

from collections.abc import Callable
import time

import pytest


def wait_until(holds: Callable[[], object], what: str, limit_s: float = 60.0) -> object:
    """Return what `holds` returns as soon as it is true; fail after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = holds()
        if value:
            return value
        time.sleep(0.01)
    pytest.fail(f'{what}: not within {limit_s:g} s')
