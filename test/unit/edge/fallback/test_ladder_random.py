# SPDX-License-Identifier: Apache-2.0
"""The ladder under any script: rows that come and go, late ticks, pauses and releases."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from support.edge.ladder_rig import joints_of, MIXED, rungs, S, STEP_NS, STEP_S, world

from lerobot_serve.edge.control.authority import JointMotion
from lerobot_serve.edge.control.rungs import RungKind, top_speed

LADDERS = [
    'ramp 0.5, hold',
    'hold',
    'ramp',
    'ramp 0.1, hold 0.2, repeat_last 0.1, safe_pose 0.3, stop_service',
    'repeat_last 0.1, ramp 0.4, stop_service',
    'safe_pose 0.2, hold',
    'stop_service',
]
RESUME_ROWS = 3
TOP = np.array([top_speed(limit, STEP_S) for limit in MIXED.actions])

ticks = st.tuples(st.just('tick'), st.integers(0, 6), st.sampled_from([1, 1, 1, 1, 5, 40]))
# long enough to reach every rung
gaps = st.tuples(st.just('dry'), st.integers(1, 40), st.just(1))
others = st.tuples(st.sampled_from(['pause', 'resume', 'lift']), st.just(0), st.just(0))
scripts = st.lists(ticks | ticks | ticks | gaps | others, max_size=40)


class Model:
    """Says, in another way, which rung is due: from when the fall began, by adding up times."""

    def __init__(self, own):
        self.own = own
        self.paused = self.stopped = self.played = self.falling = False
        self.fell_ns = None
        self.waited = 0

    def may_play(self, rows):
        if self.stopped or self.paused or not rows:
            return False
        return not self.falling or rows >= RESUME_ROWS or self.waited >= RESUME_ROWS

    def due(self, now_ns):
        ends = list(accumulate(r.for_s or 10**6 for r in self.own))
        return next(
            rung.kind
            for rung, end in zip(self.own, ends, strict=True)
            if now_ns - self.fell_ns < round(end * S)
        )

    def step(self, rows, now_ns, joints):
        """Return the rung, whether something is commanded, and whether the stop is called."""
        if self.may_play(rows):
            self.played, self.falling, self.fell_ns, self.waited = True, False, None, 0
            return RungKind.POLICY, True, False
        self.waited = self.waited + 1 if rows else 0
        self.falling |= self.played
        kind, calls = self._not_played(now_ns, joints), False
        if kind is RungKind.STOP_SERVICE and not self.stopped:
            self.stopped = calls = True
            commands = True
        else:
            commands = kind not in (RungKind.STOP_SERVICE, RungKind.NO_COMMAND, RungKind.POLICY)
        if not commands:
            self.played = self.falling = False
            self.fell_ns, self.waited = None, 0
        return kind, commands, calls

    def _not_played(self, now_ns, joints):
        if self.stopped or self.paused:
            self.fell_ns = None
            if joints is JointMotion.MOVING:
                return RungKind.RAMP
            if self.stopped:
                return RungKind.STOP_SERVICE
            return RungKind.HOLD if joints is JointMotion.AT_REST else RungKind.NO_COMMAND
        if not self.played:
            return RungKind.RAMP if joints is JointMotion.MOVING else RungKind.POLICY
        self.fell_ns = now_ns if self.fell_ns is None else self.fell_ns
        return self.due(now_ns)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(LADDERS), scripts)
def test_any_script_gives_the_rung_that_is_due_and_no_jump(text, script):
    there, model = world(text, MIXED), Model(rungs(text))
    there.now_ns, there.last = 0, None
    action = np.zeros(2)
    for verb, number, late in script:
        if verb in ('pause', 'resume'):
            there.be(paused=verb == 'pause')
            model.paused = verb == 'pause'
        elif verb == 'lift':
            there.ladder.clear_stop()
            model.stopped = False
        for _ in range({'tick': 1, 'dry': number}.get(verb, 0)):
            rows = number if verb == 'tick' else 0
            there.now_ns += (late - 1) * STEP_NS
            last, joints = there.last, joints_of(there.last, there.is_velocity)
            if model.may_play(rows):
                action = action + 0.03
            now_ns = there.now_ns
            decision = there.step(action if rows else None, rows)
            kind, commands, calls = model.step(rows, now_ns, joints)
            assert (decision.kind, decision.call_stop_service) == (kind, calls)
            assert (decision.wanted is not None) == commands
            assert decision.reason
            check(decision, last)


def check(decision, last):
    """Assert that a fall makes no joint faster than it was or may be."""
    if decision.wanted is None or decision.kind is RungKind.POLICY or last is None:
        # what is played is the policy's: the cage bounds it
        return
    wanted = decision.wanted
    moves = abs(wanted[0] - last.position[0]) / STEP_S
    assert np.isfinite(wanted).all()
    if decision.kind is not RungKind.REPEAT_LAST:
        assert abs(wanted[1]) <= abs(last.position[1])
    if decision.kind in (RungKind.HOLD, RungKind.REPEAT_LAST):
        assert wanted[0] == last.position[0]
    elif decision.kind in (RungKind.RAMP, RungKind.STOP_SERVICE):
        assert moves <= abs(last.velocity[0]) + 1e-9
    else:
        assert moves <= max(abs(last.velocity[0]), TOP[0]) + 1e-9
