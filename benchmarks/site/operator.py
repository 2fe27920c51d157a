# SPDX-License-Identifier: Apache-2.0
"""
An operator of a site in trouble: it changes the split, drains a slot, and starts and aborts
rollouts at arbitrary moments, at one router or the other. A thread of its own.

Each command is a line of the file `operator.jsonl`: its words, its router, its begin and its end
on the monotonic clock, and its exit status. 0 is a promise that both routers keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import json
from pathlib import Path
import random
import threading
import time

from benchmarks.site.fault_fleet import FaultFleet
from benchmarks.site.fault_layout import ROUTERS

# until the next command
PAUSE_S = (2.0, 6.0)
# steps that a few episodes end
PLAN = '30:4:0,60:4:0,100'
LEAST_SPLIT, MOST_SPLIT = 20, 80
# a turn: slot b gets fewer episodes, none, a rollout, and is barred and admitted again
TURN = (
    ('split',),
    ('drain', 'b'),
    ('restore', 'b'),
    ('rollout', 'start', '--plan', PLAN, '--skip-shadow'),
    ('rollout', 'abort'),
    ('rollout', 'undo'),
    ('rollout', 'stop'),
)


def turns(draw: random.Random) -> Iterator[tuple[str, ...]]:
    """Yield the words of one command after the other, without end."""
    while True:
        for words in TURN:
            is_split = words == ('split',)
            yield (*words, str(draw.randint(LEAST_SPLIT, MOST_SPLIT))) if is_split else words


class Operator:
    """Gives commands until it is stopped."""

    def __init__(self, fleet: FaultFleet, seed: int, file: Path) -> None:
        self._fleet, self._file = fleet, file
        self._draw = random.Random(f'operator {seed}')
        self._is_over = threading.Event()

    def run(self) -> None:
        """Give commands at random moments. In its thread."""
        with self._file.open('w') as log:
            for words in turns(self._draw):
                if self._is_over.wait(self._draw.uniform(*PAUSE_S)):
                    return
                print(json.dumps(self._give(words)), file=log, flush=True)

    def _give(self, words: Sequence[str]) -> dict[str, object]:
        router, began_ns = self._draw.choice(sorted(ROUTERS)), time.monotonic_ns()
        status = self._fleet.operate(words, router)
        return {
            'words': list(words),
            'router': router,
            'began_ns': began_ns,
            'ended_ns': time.monotonic_ns(),
            'status': status,
        }

    def stop(self) -> None:
        """End after the present command. Any thread."""
        self._is_over.set()


@contextlib.contextmanager
def running_operator(fleet: FaultFleet, seed: int, file: Path) -> Iterator[None]:
    """Let an operator give commands meanwhile."""
    operator = Operator(fleet, seed, file)
    thread = threading.Thread(target=operator.run, name='operator')
    thread.start()
    try:
        yield
    finally:
        operator.stop()
        thread.join()
