# SPDX-License-Identifier: Apache-2.0
"""A machine in a time zone."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import time

import pytest


@contextlib.contextmanager
def time_zone(name: str) -> Iterator[None]:
    """Local times are those of this zone within the block."""
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv('TZ', name)
            time.tzset()
            yield
    finally:
        time.tzset()
