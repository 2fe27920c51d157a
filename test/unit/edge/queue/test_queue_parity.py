# SPDX-License-Identifier: Apache-2.0
"""Random scripts on LeRobot's own queue and on ours: the same rows, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from lerobot_serve.edge.action_queue import (  # noqa: E402
    ActionQueue,
    ChunkSource,
    DELAY_RULES,
    Leftover,
)
from lerobot_serve.policies.lerobot.checkpoint.version_rules import (  # noqa: E402
    installed_version,
)
from lerobot_serve.policies.lerobot.compat import lerobot  # noqa: E402

# the rule of the installed release
RULE = DELAY_RULES['lerobot' if installed_version() < (0, 5, 0) else 'elapsed_time']

SCRIPTS = 4_000
STEPS = 24
EVERYTHING = 10**6


class Pair:
    """LeRobot's queue and ours, given the same."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.model_columns, self.robot_columns = random.integers(1, 5, size=2)
        self.ours = ActionQueue(RULE)
        self.begin()

    def begin(self) -> None:
        """Clear; LeRobot 0.4.4 has no method for it, so that its queue is a new one."""
        from lerobot.policies.rtc.action_queue import ActionQueue as Theirs

        self.ours.clear()
        self.theirs = Theirs(lerobot().rtc_config(enabled=True))
        self.request()

    def request(self) -> None:
        self.mark = self.ours.mark()

    def take(self) -> int:
        """Return whether there was a row."""
        ours, theirs = self.ours.take(), self.theirs.get()
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.action.tobytes() == theirs.numpy().tobytes()
        return int(ours is not None)

    def merge(self, number: int) -> None:
        count, delay = int(self.random.integers(0, 9)), int(self.random.integers(-11, 12))
        model, robot = (
            self.random.standard_normal((count, columns)).astype(np.float32)
            for columns in (self.model_columns, self.robot_columns)
        )
        self.theirs.cfg.enabled = bool(self.random.integers(2))
        self.theirs.merge(torch.from_numpy(model), torch.from_numpy(robot), delay, None)
        of = ChunkSource(number, 7, 0, 'episode', 0, 'prod', 'fake@0')
        if self.theirs.cfg.enabled:
            self.ours.replace(robot, of, mark=self.mark, delay_rows=delay, model=model)
        else:
            self.ours.append(robot, of, mark=self.mark, model=model)

    def compare(self) -> None:
        """Check what is left, in both units."""
        left: Leftover = self.ours.leftover(EVERYTHING)
        model, robot = self.theirs.get_left_over(), self.theirs.queue
        if model is None:
            assert not len(left.model) and not len(left.robot)
        else:
            robot = robot[self.theirs.get_action_index() :]
            assert len(left.model) == len(left.robot) == len(model) == len(robot)
            assert left.model.tobytes() == model.numpy().tobytes()
            assert left.robot.tobytes() == robot.numpy().tobytes()
        assert self.ours.rows_left == self.theirs.qsize()
        assert (self.ours.rows_left == 0) == self.theirs.empty()


def test_thousands_of_scripts_play_what_lerobot_plays():
    if lerobot().rtc_config is None:
        pytest.skip(f'LeRobot {lerobot().version} has no queue for real-time chunking')
    random = np.random.default_rng(44)
    rows_played = sum(play_script(Pair(random)) for _ in range(SCRIPTS))
    assert rows_played > 2 * SCRIPTS


def play_script(pair: Pair) -> int:
    """Return how many rows were taken."""
    rows_played = 0
    for number in range(STEPS):
        kind = pair.random.integers(12)
        if kind < 6:
            rows_played += pair.take()
        elif kind < 9:
            pair.merge(number)
        elif kind < 10:
            pair.request()
        elif kind < 11:
            pair.compare()
        elif pair.random.integers(4) == 0:
            pair.begin()
    pair.compare()
    return rows_played
