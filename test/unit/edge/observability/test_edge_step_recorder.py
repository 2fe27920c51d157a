# SPDX-License-Identifier: Apache-2.0
"""What a trace tells of control steps: each command, and what begins or changes."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, STEP_NS, STEP_S
from support.edge.edge_recorder_rig import audited, CLIENT, Notes

from lerobot_serve.cage.limits_encoding import encode_limits
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.observability.trace_recorder import StepRecorder
from lerobot_serve.tools.audit.engine import CheckStatus

NAN = float('nan')


class Driven:
    """A controller whose steps are recorded."""

    def __init__(self, *, max_step: float = 10.0, **bench: object) -> None:
        self.bench, self.notes = Bench(arm(max_step), **bench), Notes()
        self.recorder = StepRecorder(self.notes, lambda: 0, client_id=CLIENT)
        self.say, self.tick = ControlAuthority.POLICY, 0

    def drive(self, steps: int = 1) -> list[dict]:
        """Return the commands of so many steps as they were told."""
        before = len(self.commands)
        for _ in range(steps):
            self.tick += 1
            now_ns, executed = self.bench.now_ns, self.bench.step()
            self.recorder.step_finished(
                now_ns, self.tick, executed, self.bench.controller, self.say
            )
        return self.commands[before:]

    @property
    def commands(self) -> list[dict]:
        return self.notes.of('executed')

    def states(self, of: str) -> list[tuple]:
        return [
            (r['from'], r['to'], r.get('reason'))
            for r in self.notes.of('state')
            if r['component'] == of
        ]

    @property
    def incidents(self) -> list[tuple]:
        return [(r['name'], r.get('reason')) for r in self.notes.of('incident')]


def test_a_row_that_is_played_is_told_with_where_it_comes_from():
    driven = Driven()
    driven.bench.plan(0.5, 0.75, age_ns=3 * STEP_NS, seq=4)
    _, told = driven.drive(2)
    assert (told.pop('raw').tolist(), told.pop('commanded').tolist()) == ([0.75], [0.75])
    assert told == {
        'kind': 'executed',
        'mono_ns': 1_000_000_000 + STEP_NS,
        'client_id': CLIENT,
        'session_epoch': 7,
        'seq': 4,
        'episode_id': 'episode',
        'control_step': 2,
        'chunk_row': 1,
        'age_s': 0.08,
        'cage_result': 'pass',
        'rung': 'policy',
        'slot': 'prod',
        'policy': 'fake@0',
    }


def test_a_step_without_a_command_is_none():
    driven = Driven()
    assert driven.drive(3) == []


def test_what_the_ladder_commands_belongs_to_no_request_and_says_why():
    driven = Driven()
    driven.bench.plan(0.5)
    _, told = driven.drive(2)
    assert (told['rung'], told['reason']) == ('ramp', 'ramp: nothing_to_play')
    assert not {'seq', 'chunk_row', 'age_s', 'slot', 'policy'} & told.keys()
    assert driven.states('rung') == [('policy', 'ramp', 'ramp: nothing_to_play')]
    assert driven.incidents == [('stalled', 'ramp: nothing_to_play')]


def test_what_the_cage_changes_is_told_beside_what_was_wanted():
    driven = Driven(max_step=0.1)
    driven.bench.plan(0.5)
    (told,) = driven.drive()
    assert (told['raw'][0], told['commanded'][0]) == (0.5, pytest.approx(0.1))
    assert (told['cage_result'], told['reason']) == ('clamped', 'j0.pos: max_step')
    # of a rung, both: why it was changed, and what led to it
    driven.bench.controller._ladder._wanted = lambda *_: np.array([5.0])
    (told,) = driven.drive()
    assert told['reason'] == 'j0.pos: max_step; ramp: nothing_to_play'


def test_a_trip_is_told_as_it_begins_and_nan_whenever_it_comes():
    driven = Driven(max_step=0.1)
    driven.bench.plan(0.05, 5.0, 5.0, NAN, 5.0, 0.3, 5.0)
    driven.drive(7)
    assert [record['cage_result'] for record in driven.commands] == [
        'pass', 'clamped', 'clamped', 'held', 'clamped', 'pass', 'clamped',
    ]  # fmt: skip
    assert [name for name, _ in driven.incidents] == [
        'cage_trip',
        'action_not_finite',
        'cage_trip',
    ]


def test_a_cage_that_latches_and_is_reset_is_told():
    driven = Driven(max_step=0.1, latch_after_trips=2)
    driven.bench.plan(*[5.0] * 4)
    told = driven.drive(3)
    assert told[-1]['cage_result'] == 'stopped'
    assert 'commanded' not in told[-1]
    driven.bench.controller.reset_cage()
    driven.drive()
    latched, reset = driven.states('cage')
    assert (latched[:2], reset[:2]) == (('active', 'latched'), ('latched', 'active'))
    assert [name for name, _ in driven.incidents][:2] == ['cage_trip', 'cage_latched']


def test_who_has_the_say_is_told():
    driven = Driven()
    for say in (
        ControlAuthority.POLICY,
        ControlAuthority.OPERATOR,
        ControlAuthority.OPERATOR,
        ControlAuthority.POLICY,
        ControlAuthority.TEARDOWN,
    ):
        driven.say = say
        driven.drive()
    assert [step[:2] for step in driven.states('control_authority')] == [
        ('none', 'policy'),
        ('policy', 'operator'),
        ('operator', 'policy'),
        ('policy', 'teardown'),
    ]


def test_a_pause_is_no_stall():
    driven = Driven()
    driven.bench.plan(*[0.1] * 5)
    driven.drive(2)
    driven.bench.be(paused=True)
    driven.drive(3)
    assert driven.incidents == []
    assert driven.commands[-1]['reason'] == 'hold: paused'


def test_what_is_told_holds_what_is_audited():
    driven = Driven(max_step=0.1)
    driven.drive(2)
    for seq in range(1, 6):
        driven.bench.plan(*np.linspace(-0.5, 0.5, 6) * seq, NAN, age_ns=STEP_NS, seq=seq)
        driven.drive(9)
    limits = encode_limits(driven.bench.robot.actions, STEP_S).decode()
    found = audited(driven.notes.records, limits=limits, max_action_age_s=0.2)
    for check in ('age', 'finite', 'position', 'step', 'rows'):
        assert found[check] is CheckStatus.HOLDS, check
