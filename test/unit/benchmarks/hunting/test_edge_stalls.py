# SPDX-License-Identifier: Apache-2.0
"""
An edge that stood still, in each situation and for any time, while the robot was moved or not: a
whole edge in virtual time, looked at from outside.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, Phase, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from benchmarks.hunting.edge_model import EdgeModel, MAX_LEAD, MAX_STEP, SERVERS, SILENCE_NS
from benchmarks.hunting.edge_servers import ABSENT, HEALTHY

S = 1_000_000_000
TINY = 1e-6


class Stalled(EdgeModel):
    """Keeps what was commanded since the stall, and where the robot was measured by then."""

    def __init__(self, seed: int, **choices: object) -> None:
        self.commands: list[np.ndarray] = []
        self.samples = 0
        self.first_after, self.is_silence = 0, False
        super().__init__(
            seed, **{'interpolation_multiplier': 1, 'skip_rule': 'moving_time', **choices}
        )

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def stall(self, stall_ns: int, moved: float, waiting: int) -> None:
        self.commands, self.samples = [], 0
        self.is_silence = stall_ns > SILENCE_NS
        super().stall(stall_ns, moved, waiting)
        assert not (self.is_silence and self.commands)
        self.samples = -len(self._waiting)

    def _sense(self) -> None:
        super()._sense()
        self.samples += 1

    def send_step(self, executed, control_step: int, is_old: Callable[[], bool]) -> bool:
        is_sent = super().send_step(executed, control_step, is_old)
        command = executed.judgement.command
        if is_sent and command is not None:
            if self.is_silence:
                self.check(command)
            self.commands.append(command)
        return is_sent

    def check(self, command: np.ndarray) -> None:
        if not self.commands:
            self.first_after = self.samples
            assert (abs(command - self.where) <= np.array(MAX_STEP) + TINY).all()
        # `where` is measured in each step of this model
        ahead = abs(command - self.where)
        before = abs((self.commands or [self.where])[-1] - self.where)
        assert (ahead <= np.maximum(before, MAX_LEAD) + TINY).all()


def playing(model: Stalled) -> None:
    model.reset()
    model.steps(12)


def paused(model: Stalled) -> None:
    playing(model)
    model.pause()
    model.steps(8)


def person_commanding(model: Stalled) -> None:
    playing(model)
    model.take_over()
    model.set_leader('pose', (1.9, -0.9))
    model.steps(2)


def person_holding_still(model: Stalled) -> None:
    person_commanding(model)
    model.steps(20)


def latched(model: Stalled) -> None:
    playing(model)
    model.controller._cage.latch('test')
    model.steps(4)


def on_the_ladder(model: Stalled) -> None:
    playing(model)
    for server in SERVERS:
        model.set_mood(server, ABSENT)
    model.steps(14)


def given_up(model: Stalled) -> None:
    on_the_ladder(model)
    model.steps(20)


def between_episodes(model: Stalled) -> None:
    playing(model)
    model.run()
    model.steps(8)
    model.cancel()
    model.steps(8)


def lift(model: Stalled) -> None:
    """Let everything move again that a situation holds back."""
    for server in SERVERS:
        model.set_mood(server, HEALTHY)
    # a robot that had no server for long is given up meanwhile
    model.steps(6)
    model.reset_cage()
    model.resume()
    if model.takeover.is_taken_over:
        model.set_leader('pose', (-1.9, 0.9))
    else:
        model.reset()


SITUATIONS = [
    playing,
    paused,
    person_commanding,
    person_holding_still,
    latched,
    on_the_ladder,
    given_up,
    between_episodes,
]


@pytest.mark.parametrize('situation', SITUATIONS)
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    stall_ns=st.integers(S // 10, 20 * S) | st.sampled_from([SILENCE_NS, SILENCE_NS + 1]),
    moved=st.sampled_from([0.0, 0.05, 0.9, -1.4]),
    waiting=st.sampled_from([0, 1, 4]),
    way=st.sampled_from([{}, {'while_paused': 'no_command', 'teardown': 'safe_pose'}]),
    is_lifted=st.booleans(),
)
def test_after_a_stall_it_begins_where_it_is_once_it_was_seen(
    situation: Callable[[Stalled], None], stall_ns, moved, waiting, way, is_lifted
):
    model = Stalled(3, **way)
    try:
        situation(model)
        model.stall(stall_ns, moved, waiting)
        if is_lifted:
            lift(model)
        model.steps(24)
        if model.is_silence and model.commands:
            assert model.first_after >= 3
        # it is not silent for ever
        assert model.commands or not is_lifted
    finally:
        model.close()
