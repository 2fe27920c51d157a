# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dataset --append` is killed: a dataset is there, old or new, and then whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import random
import shutil
import subprocess
import time

import pytest
from support.tools.datasets import bag_of, dataset, ids_of, rows_of

from lerobot_serve.tools.dataset.checking import check_dataset
from lerobot_serve.tools.processes import end_with_parent

pytest.importorskip('lerobot')
pytestmark = [pytest.mark.release, pytest.mark.limit_s(900)]

# with the dataset that is there more than are joined at once
EPISODES, KILLS = 17, 6
LIMIT_S = 240


class Append:
    """Appends a bag to a dataset, killed again and again."""

    def __init__(self, folder: Path) -> None:
        self.out, self.whole = folder / 'out', folder / 'whole'
        self.staging = folder / 'out.staging'
        first = bag_of(folder / 'first', ['a', 'b'])
        self.bag = bag_of(folder / 'more', [f'e{number}' for number in range(EPISODES)])
        assert dataset(first, self.out) == 0
        self.old = rows_of(self.out)
        shutil.copytree(self.out, folder / 'old')
        shutil.copytree(self.out, self.whole)
        assert dataset(self.bag, self.whole, '--append') == 0
        self.new = rows_of(self.whole)

    @property
    def command(self) -> list[str]:
        return ['lerobot-serve', 'dataset', str(self.bag), str(self.out), '--append']

    def start_again(self) -> None:
        """Forget what was appended."""
        for folder in (self.out, self.staging):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.out.with_name('old'), self.out)

    def kill(self, reached: Callable[[], bool], after_s: float) -> bool:
        """Kill a conversion some time after it reached something; return whether it ran."""
        process = subprocess.Popen(
            end_with_parent(self.command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        limit_s = time.monotonic() + LIMIT_S
        while process.poll() is None and not reached():
            assert time.monotonic() < limit_s
            time.sleep(0.002)
        try:
            # a random instant, not an event
            assert process.wait(after_s) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
        return False

    def check(self) -> None:
        """One dataset is there, whole."""
        previous = self.staging / 'previous'
        found = self.out if self.out.exists() else previous
        assert rows_of(found) in (self.old, self.new)
        assert check_dataset(found, decode=False) == []

    def finish(self) -> str:
        done = subprocess.run(
            self.command, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        assert rows_of(self.out) == self.new
        assert check_dataset(self.out, decode=True) == []
        assert ids_of(self.out) == ids_of(self.whole)
        assert not self.staging.exists()
        return done.stdout


def test_an_append_that_is_killed_while_it_converts_or_joins(tmp_path):
    append, draw = Append(tmp_path), random.Random(5)

    def is_converting() -> bool:
        return len(list(append.staging.glob('*/episode.json'))) >= draw_count

    def is_joining() -> bool:
        return (append.staging / 'cache/groups').exists() or is_merging()

    def is_merging() -> bool:
        return (append.staging / 'merged').exists() or (append.staging / 'published').exists()

    kills = 0
    for number in range(KILLS):
        draw_count = draw.randrange(1, EPISODES)
        reached = (is_converting, is_joining, is_merging)[number % 3]
        was_killed = append.kill(reached, draw.uniform(0.0, 0.5))
        kills += was_killed
        append.check()
        if not was_killed:
            append.start_again()
    append.finish()
    assert kills >= KILLS // 2
