# SPDX-License-Identifier: Apache-2.0
"""What is alive in and below this process: threads, child processes, ROS contexts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
import gc
import os
from pathlib import Path
import sys
import threading
import time
import weakref

GRACE_S = 5.0
# what a browser gives to each process that it starts; the browser itself has none
OF_BROWSER = ' --type='


@dataclass(frozen=True)
class Stock:
    """A count of what is alive."""

    threads: frozenset[int]
    processes: frozenset[int]
    contexts: frozenset[int]


def take_stock() -> Stock:
    """Return what is alive now."""
    return Stock(
        frozenset(thread.ident for thread in threading.enumerate()),
        frozenset(children(os.getpid())),
        frozenset(map(id, open_contexts())),
    )


def left_behind(before: Stock) -> list[str]:
    """Return what has come since and does not go within GRACE_S."""
    deadline = time.monotonic() + GRACE_S
    while (left := came_since(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def came_since(before: Stock) -> list[str]:
    threads = [t.name for t in threading.enumerate() if t.ident not in before.threads]
    # a browser of the whole file starts processes of its own when it likes
    processes = [
        pid
        for pid in children(os.getpid())
        if pid not in before.processes and OF_BROWSER not in command(pid)
    ]
    contexts = [c for c in open_contexts() if id(c) not in before.contexts]
    return [
        *(f'thread {name}' for name in threads),
        *(f'process {pid} ({command(pid)})' for pid in processes),
        *('an open ROS context' for _ in contexts),
    ]


def children(parent: int) -> list[int]:
    """Return the process ids of all descendants."""
    found: list[int] = []
    tasks = f'/proc/{parent}/task'
    # as the kernel lists them for each thread: looking through all processes takes 10 ms. Not
    # with pathlib, which takes four times as long, twice in each test
    with contextlib.suppress(OSError):
        for thread in os.listdir(tasks):
            with contextlib.suppress(OSError), open(f'{tasks}/{thread}/children') as file:
                found += map(int, file.read().split())
    return found + [below for child in found for below in children(child)]


def command(pid: int) -> str:
    try:
        return Path(f'/proc/{pid}/cmdline').read_text().replace('\0', ' ').strip()
    except OSError:
        return 'gone'


def open_contexts() -> list[object]:
    """Return every rclpy context that is up; a node cannot outlive its context."""
    module = sys.modules.get('rclpy.context')
    if module is None:
        return []
    if not hasattr(module.Context, 'watched'):
        watch(module.Context)
    return [context for context in list(module.Context.watched) if context.ok()]


def watch(kind: type) -> None:
    """Remember every context from now on; those that exist are looked for once, which is slow."""
    # type(), since isinstance would run the __class__ of lazy objects of other libraries
    kind.watched = weakref.WeakSet(c for c in gc.get_objects() if issubclass(type(c), kind))
    build = kind.__init__

    def build_and_remember(self, *arguments, **named) -> None:
        build(self, *arguments, **named)
        kind.watched.add(self)

    kind.__init__ = build_and_remember
