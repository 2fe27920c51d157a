# SPDX-License-Identifier: Apache-2.0
"""A Chromium that shows the page, and what all its processes cost. One thread."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import shutil
import time

from benchmarks.harness.processes import child, cpu_s

NAMES = ('chromium', 'chromium-browser', 'google-chrome')
FLAGS = (
    *('--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-sync'),
    *('--disable-background-networking', '--disable-component-update'),
    *('--remote-debugging-port=0', '--window-size=1280,800'),
)
# until the page is drawn and its own start is over
SETTLE_S = 12.0


def browser_path() -> str:
    """Return the browser of CHROMIUM or of the PATH; empty for none."""
    named = os.environ.get('CHROMIUM')
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), '')


def browser_share(path: str, port: int, seconds: float, folder: Path) -> float:
    """Return the share of a core [%] of a browser that shows the page."""
    words = [path, *FLAGS, f'--user-data-dir={folder / "browser"}', f'http://127.0.0.1:{port}/']
    with child(words, folder / 'browser.log') as process:
        time.sleep(SETTLE_S)
        members = family(process.pid)
        before = {pid: cpu_s(pid) for pid in members}
        begin_s = time.monotonic()
        time.sleep(seconds)
        passed_s = time.monotonic() - begin_s
        # a process of a browser may end meanwhile
        left = members & family(process.pid)
        return 100 * sum(cpu_s(pid) - before[pid] for pid in left) / passed_s


def family(root: int) -> set[int]:
    """Return a process and all that descend from it."""
    parents = dict(_parents())
    found, size = {root}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            yield (
                int(folder.name),
                int((folder / 'stat').read_text().rpartition(')')[2].split()[1]),
            )
