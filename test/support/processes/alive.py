# SPDX-License-Identifier: Apache-2.0
"""Whether a process runs."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process runs, also one of another parent; a zombie does not."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False
