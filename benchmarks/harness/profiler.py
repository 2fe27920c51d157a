# SPDX-License-Identifier: Apache-2.0
"""
Runs an executable under cProfile, each of its threads for itself, in time of the processor: a
thread that waits costs nothing.

    python -m benchmarks.harness.profiler FOLDER EXECUTABLE [ARGUMENT ...]

What a thread was busy with is written to FOLDER/THREAD.json when it ends; SIGUSR1 lets everything
before it be forgotten. The main thread, which loads and then waits, is left out. Imports neither
rclpy nor torch.
"""

from __future__ import annotations

from collections import Counter
import cProfile
import gc
import json
from pathlib import Path
import runpy
import signal
import sys
import threading
import time
from types import CodeType

LIMIT = (3, 12)
WHY_NOT = 'from Python 3.12 on, cProfile takes the calls of all threads for those of one'
RESET_SIGNAL = signal.SIGUSR1
# what a thread with less did is no news
MIN_SHARE = 0.01
# function -> seconds spent in itself
Spent = dict[str, float]


def is_possible() -> bool:
    """Whether this Python can profile threads."""
    return sys.version_info < LIMIT


def read(folder: Path) -> dict[str, Spent]:
    """Return what each thread was busy with, most first; the busiest thread first."""
    threads = {file.stem: json.loads(file.read_text()) for file in folder.glob('*.json')}
    return dict(sorted(threads.items(), key=lambda item: -sum(item[1].values())))


def summarize_threads(threads: dict[str, Spent], hottest: int) -> dict[str, str]:
    """Return each busy thread's share of all that was spent, and what makes most of it."""
    whole_s = sum(sum(spent.values()) for spent in threads.values())
    shares = {thread: sum(spent.values()) / whole_s for thread, spent in threads.items()}
    return {
        thread: f'{shares[thread]:.0%}: '
        + '; '.join(f'{name} {s / whole_s:.1%}' for name, s in list(spent.items())[:hottest])
        for thread, spent in threads.items()
        if shares[thread] >= MIN_SHARE
    }


def named(code: CodeType | str) -> str:
    """Return what a profile calls a function as a reader knows it."""
    # a function of C, like <method 'publish' of '...Publisher' objects>
    if isinstance(code, str):
        return code.strip('<>').removeprefix('built-in method ').replace("'", '')
    path = Path(code.co_filename)
    return f'{path.parent.name}/{path.name}:{code.co_firstlineno} {code.co_name}'


class Profiles:
    """One for each thread. Any thread; `forget` is the main thread's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of: dict[threading.Thread, cProfile.Profile] = {}
        self._forgotten: dict[threading.Thread, Counter[str]] = {}

    def run(self, thread: threading.Thread) -> None:
        """Be the body of a thread."""
        profile = self._of[thread] = cProfile.Profile(time.thread_time)
        try:
            profile.runcall(BARE_RUN, thread)
        finally:
            spent = times_s(profile)
            spent.subtract(self._forgotten.get(thread, {}))
            file = self._folder / f'{thread.name}.json'
            file.write_text(json.dumps(dict(spent.most_common())))

    def forget(self, *_: object) -> None:
        """Let what was spent until now not count."""
        # while it is read, no finalizer may let another thread add to it
        gc.disable()
        self._forgotten = {thread: times_s(each) for thread, each in self._of.items()}
        gc.enable()


def times_s(profile: cProfile.Profile) -> Counter[str]:
    """Return what was spent so far in functions that have returned."""
    spent: Counter[str] = Counter()
    for entry in profile.getstats():
        spent[named(entry.code)] += entry.inlinetime
    return spent


BARE_RUN = threading.Thread.run


def main() -> None:
    folder, sys.argv = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    profiles = Profiles(folder)
    signal.signal(RESET_SIGNAL, profiles.forget)
    threading.Thread.run = lambda thread: profiles.run(thread)
    runpy.run_path(sys.argv[0], run_name='__main__')


if __name__ == '__main__':
    main()
