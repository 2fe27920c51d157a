# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is logged when it changes, with its share, and never again and again."""

from __future__ import annotations

from collections import Counter

import pytest

from lerobot_serve.edge.observability.problem_log import ProblemLog, StateLog

S = 1_000_000_000
STEPS = 300


class Logged:
    """A log of ten seconds a poll, with 300 control steps in each."""

    def __init__(self, kind: type) -> None:
        self.now_ns, self.steps, self.lines = 0, 0, []
        self.log = kind(
            info=lambda text: self.lines.append(f'I {text}'),
            warning=lambda text: self.lines.append(f'W {text}'),
            clock=lambda: self.now_ns,
        )
        self.counts: Counter[str] = Counter()
        self.in_steps: Counter[str] = Counter()

    def pass_period(self, in_steps: dict[str, int] | None = None, **counts: int) -> list[str]:
        before = len(self.lines)
        self.now_ns += 10 * S
        self.steps += STEPS
        self.counts.update(counts)
        self.in_steps.update(in_steps or {})
        self.log.poll(self.counts, self.in_steps, self.steps)
        return self.lines[before:]


def test_harmless_clamps_say_nothing_for_hours():
    """A gripper closes on its limit three times in ten seconds."""
    logged = Logged(ProblemLog)
    for _ in range(1000):
        assert logged.pass_period({'cage, limit': 3}, cleared_action=9) == []


def test_one_line_when_a_share_begins_when_it_doubles_and_when_it_is_over():
    logged = Logged(ProblemLog)
    shares = [3, 30, 33, 27, 80, 75, 40, 38, 3, 3]
    lines = [logged.pass_period({'cage, max_step': count}) for count in shares]
    last = 'of the control steps of the last 10 s'
    assert lines == [
        [],
        [f'W cage, max_step: 10% {last}, 0% before'],
        [],
        [],
        [f'W cage, max_step: 27% {last}, 10% before'],
        [],
        [f'W cage, max_step: 13% {last}, 27% before'],
        [],
        ['I cage, max_step: below 5% of the control steps again'],
        [],
    ]


def test_a_few_trips_for_the_state_are_not_hidden_by_many_harmless_ones():
    logged = Logged(ProblemLog)
    assert len(logged.pass_period({'cage, limit': 254})) == 1
    (line,) = logged.pass_period({'cage, limit': 254, 'cage, position_unknown': 40})
    assert line.startswith('W cage, position_unknown: 13% ')


def test_a_new_kind_of_drop_does_not_wait_and_the_same_rate_is_said_once():
    logged = Logged(ProblemLog)
    logged.counts['stalls'] = 1
    logged.log.poll(logged.counts, logged.in_steps, 1)
    assert logged.lines == ['W dropped or failed: stalls 1']
    assert [logged.pass_period(stalls=n) for n in (1, 1, 0, 1)] == [[], [], [], []]
    assert logged.pass_period(stalls=7) == ['W dropped or failed in the last 10 s: stalls 7']
    assert logged.pass_period(stalls=8, request_timeout=2) == [
        'W dropped or failed: request_timeout 2'
    ]
    assert logged.pass_period(stalls=2) == []
    assert logged.pass_period(stalls=7) == ['W dropped or failed in the last 10 s: stalls 7']


@pytest.mark.parametrize('flaps', [1, 50])
def test_a_state_that_is_lost_is_one_line_with_its_input_and_one_at_its_end(flaps):
    logged = Logged(StateLog)
    why = 'joint_states on /arm/joint_states is 0.62 s old, 0.5 s is allowed'
    held = 0
    for _ in range(flaps):
        for unknown, more in ((why, 3), ('', 2)):
            held += more
            logged.now_ns += S // 5
            logged.log.poll(unknown, why, held)
    assert logged.lines == [f'W commands are held, the state of the robot is not known: {why}']
    for _ in range(60):
        logged.now_ns += S
        logged.log.poll('', why, held)
    assert len(logged.lines) == 2 and f': {held} commands were held' in logged.lines[1]
    logged.log.poll(why, why, held + 1)
    assert len(logged.lines) == 3


def test_a_state_that_stays_away_is_not_called_known_again():
    logged = Logged(StateLog)
    logged.log.poll('gone', 'gone', 1)
    for _ in range(60):
        logged.now_ns += S
        logged.log.poll('gone', 'gone', 1)
    assert len(logged.lines) == 1
