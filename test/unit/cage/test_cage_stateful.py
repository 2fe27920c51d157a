# SPDX-License-Identifier: Apache-2.0
"""
A robot that lives with the cage: a plant that lags, is blocked and pushed, a policy that may say
anything, sensors that fail, a latch and its reset, against a model of what must hold.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, RuleBasedStateMachine
import numpy as np
from support.edge.cage_rig import (
    at_rest,
    cage,
    check_command,
    judge,
    moderate,
    outside,
    STEP_S,
    wild,
)

from lerobot_serve.cage.description import ActionLimit, Interlock, LastCommand, Motion, Verdict

POSITION = Motion.POSITION
ROBOT = (
    ActionLimit('pan', 'pan', POSITION, -1.0, 1.0, 0.1, max_acceleration=20.0),
    ActionLimit('lift', 'lift', POSITION, 0.0, 2.0, 0.3, max_velocity=4.0, max_lead=0.25),
    ActionLimit('grip', 'grip', POSITION, -0.5, 0.5, 0.05),
    ActionLimit('drive', 'drive', Motion.VELOCITY, -1.0, 1.0, 0.2, max_acceleration=5.0),
)
STATES = ('near', 'hot')
NEAR = Interlock('near', 'near', 0.5, None, {'drive': 0.0, 'lift': 1.5})
HOT = Interlock('hot', 'hot', None, 80.0, {'grip': -0.5})
LATCH = 5
DRIVE = 3
CALM = {'near': 1.0, 'hot': 20.0}


class Life(RuleBasedStateMachine):
    """One tick is one `judge`; the robot follows what it was told."""

    @initialize(place=st.tuples(*[st.floats(-0.4, 0.4)] * 3))
    def switch_on(self, place):
        self.guard = cage(ROBOT, (NEAR, HOT), STATES, latch_after_trips=LATCH)
        self.last: LastCommand | None = None
        self.robot = np.array([*place, 0.0])
        self.state = dict(CALM)
        self.blind = self.blocked = False
        self.in_a_row = 0
        self.latched = False

    @rule(at=st.sampled_from(STATES), value=st.sampled_from([0.0, 1.0, 90.0, np.nan, np.inf]))
    def sense(self, at, value):
        self.state[at] = value

    @rule()
    def calm_down(self):
        self.state, self.blind, self.blocked = dict(CALM), False, False

    @rule(blind=st.booleans())
    def lose_the_joints(self, blind):
        self.blind = blind

    @rule(blocked=st.booleans())
    def block(self, blocked):
        self.blocked = blocked

    @rule(push=st.tuples(*[st.floats(-1, 1)] * 4))
    def push(self, push):
        self.robot = self.robot + np.array(push)

    @rule()
    def stall(self):
        """Forget the last command, as after a stall."""
        self.last = None

    @rule()
    def reset(self):
        self.guard.reset()
        self.in_a_row, self.latched = 0, False

    @rule(wanted=wild(4))
    def want_anything(self, wanted):
        self.tick(wanted)

    @rule(wanted=st.lists(moderate, min_size=4, max_size=4), ticks=st.integers(1, 12))
    def want_a_place(self, wanted, ticks):
        for _ in range(ticks):
            self.tick(np.array(wanted))

    @rule(share=st.tuples(*[st.floats(-1, 1)] * 4), ticks=st.integers(1, 6))
    @precondition(lambda self: self.last is not None)
    def want_what_is_allowed(self, share, ticks):
        for _ in range(ticks):
            self.tick(self.last.position + np.array(share) * [0.005, 0.05, 0.04, 0.09])

    def tick(self, wanted) -> None:
        measured = np.full(4, np.nan) if self.blind else self.robot
        state = np.array([self.state[name] for name in STATES])
        # from where it is measured, as the control step has it after several samples
        last = self.last or (None if self.blind else at_rest(*self.robot[:DRIVE], 0.0))
        was_latched = self.latched
        judgement = judge(self.guard, wanted, last, measured, state)
        self.check_latch(judgement)
        if judgement.command is not None:
            stopped = judgement.verdict == Verdict.STOPPED and not was_latched
            sees = None if self.blind or stopped else measured
            check_command(ROBOT, last, judgement.command, sees)
            self.check_interlocks(judgement, last, state)
            self.check_verdict(judgement, wanted, state)
            self.last = last.after(judgement.command, STEP_S)
            self.follow(judgement.command)
        elif self.last is not None:
            self.last = self.last.after(None, STEP_S)

    def check_latch(self, judgement) -> None:
        if self.latched:
            assert judgement.verdict == Verdict.STOPPED
            assert judgement.cause == 'latched'
        if judgement.verdict == Verdict.PASS:
            self.in_a_row = 0
        elif judgement.cause not in ('interlock', 'state_unknown', 'position_unknown'):
            self.in_a_row += 1
        self.latched = self.latched or self.in_a_row >= LATCH
        assert self.guard.latched == self.latched

    def check_interlocks(self, judgement, last, state) -> None:
        """Assert that what is forced goes towards it."""
        if judgement.verdict == Verdict.STOPPED and judgement.cause != 'latched':
            return
        near, hot = state
        drive, lift, grip = judgement.command[[DRIVE, 1, 2]]
        if near < 0.5 and np.isfinite(near):
            assert abs(drive) <= max(0, abs(last.position[DRIVE]) - 0.1 * (1 - 1e-9))
            if not self.blind and 0 <= last.position[1] <= 2:
                assert abs(lift - 1.5) <= abs(last.position[1] - 1.5) or outside(
                    self.robot[1] - 0.25, self.robot[1] + 0.25, last.position[1]
                )
        if hot > 80 and np.isfinite(hot):
            # also from below, where it stands outside its limits
            expected = np.clip(-0.5, last.position[2] - 0.05, last.position[2] + 0.05)
            assert abs(grip - expected) <= 1e-9

    def check_verdict(self, judgement, wanted, state) -> None:
        known = np.isfinite(state).all() and not self.blind
        if isinstance(wanted, np.ndarray) and wanted.dtype.kind in 'fiu' and wanted.shape == (4,):
            same = bool((judgement.command == wanted).all())
            finite = bool(np.isfinite(wanted).all())
            if known and finite and judgement.verdict != Verdict.STOPPED:
                assert judgement.verdict == (Verdict.PASS if same else Verdict.CLAMPED)
            elif judgement.verdict != Verdict.STOPPED:
                assert judgement.verdict == Verdict.HELD
        elif judgement.verdict != Verdict.STOPPED:
            # only for what an interlock forces
            assert judgement.verdict == Verdict.HELD
            near, hot = state
            assert near < 0.5 or (hot > 80 and np.isfinite(hot))

    def follow(self, command) -> None:
        if not self.blocked:
            self.robot = self.robot + 0.6 * (command - self.robot)
        self.robot[DRIVE] = command[DRIVE]

    @invariant()
    def what_was_counted_stays(self):
        if hasattr(self, 'guard'):
            total = sum(self.guard.trips.values())
            assert total >= getattr(self, 'total', 0)
            assert min(self.guard.trips.values(), default=1) > 0
            self.total = total


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
