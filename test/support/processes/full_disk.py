# SPDX-License-Identifier: Apache-2.0
"""A disk that is full for this process."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import resource


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let a disk be full: a line is written in part, then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
