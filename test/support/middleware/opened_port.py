# SPDX-License-Identifier: Apache-2.0
"""A port of Fast DDS, opened to be changed as a process that is killed leaves it."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path

from lerobot_serve.shared_memory import ports


@contextlib.contextmanager
def opened_port(file: Path) -> Iterator[tuple[int, bytes]]:
    """Give a handle of a port, and what was in it."""
    handle = os.open(file, os.O_RDWR)
    try:
        yield handle, os.pread(handle, ports.FILE_BYTES_LIMIT, 0)
    finally:
        os.close(handle)


def layout_of(memory: bytes, number: int) -> ports.Layout:
    """Return the layout of a port, which it must have."""
    layout = ports.find_layout(memory, number)
    assert layout, f'port {number} has another layout'
    return layout
