"""The ladder under any script: rows that come and go, late ticks, pauses and releases."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st
from ladder_rig import MIXED, rungs, S, STEP_NS, STEP_S
import numpy as np

from lerobot_serve.cage.judgement import Last
from lerobot_serve.edge.ladder import Ladder
from lerobot_serve.edge.ramp import top_speed
from lerobot_serve.edge.rungs import RungKind

LADDERS = [
    'ramp 0.5, hold',
    'hold',
    'ramp',
    'ramp 0.1, hold 0.2, repeat_last 0.1, safe_pose 0.3, stop_service',
    'repeat_last 0.1, ramp 0.4, stop_service',
    'safe_pose 0.2, hold',
    'stop_service',
]
STOP_AND_HOLD = rungs('ramp 0.2, hold')
RESUME_ROWS = 3
TOP = np.array([top_speed(limit, STEP_S) for limit in MIXED.actions])

ticks = st.tuples(st.just('tick'), st.integers(0, 6), st.sampled_from([1, 1, 1, 1, 5, 40]))
# long enough to reach every rung
gaps = st.tuples(st.just('dry'), st.integers(1, 40), st.just(1))
others = st.tuples(st.sampled_from(['divert', 'release', 'forget']), st.just(0), st.just(0))
scripts = st.lists(ticks | ticks | ticks | gaps | others, max_size=40)


class Model:
    """Says, in another way, which rung is due: from when the fall began, by adding up times."""

    def __init__(self, own):
        self.own = self.present = own
        self.diverted = self.stopped = self.played = self.falling = False
        self.fell_ns = None
        self.waited = 0
        self.calls = 0

    def may_play(self, rows):
        if self.stopped or self.diverted or not rows:
            return False
        return not self.falling or rows >= RESUME_ROWS or self.waited >= RESUME_ROWS

    def due(self, now_ns):
        ends = list(accumulate(r.for_s or 10**6 for r in self.present))
        return next(
            rung.kind
            for rung, end in zip(self.present, ends, strict=True)
            if now_ns - self.fell_ns < round(end * S)
        )

    def step(self, rows, now_ns):
        """Return the rung, whether something is commanded, and whether the stop is called."""
        if self.may_play(rows):
            self.played, self.falling, self.fell_ns, self.waited = True, False, None, 0
            return RungKind.PLAY, True, False
        self.waited = self.waited + 1 if rows else 0
        if self.stopped:
            return RungKind.STOP_SERVICE, False, False
        if not self.played:
            return RungKind.PLAY, False, False
        self.falling = True
        self.fell_ns = now_ns if self.fell_ns is None else self.fell_ns
        kind = self.due(now_ns)
        self.stopped = kind is RungKind.STOP_SERVICE
        return kind, not self.stopped, self.stopped

    def divert(self):
        self.present, self.diverted, self.fell_ns = STOP_AND_HOLD, True, None
        self.falling = self.played

    def release(self):
        if self.stopped:
            self.forget()
        elif self.diverted:
            self.fell_ns = None
        self.present, self.diverted, self.stopped = self.own, False, False

    def forget(self):
        self.played = self.falling = False
        self.fell_ns, self.waited = None, 0


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(LADDERS), scripts)
def test_any_script_gives_the_rung_that_is_due_and_no_jump(text, script):
    ladder = Ladder(rungs(text), MIXED, step_s=STEP_S, resume_rows=RESUME_ROWS)
    model, now_ns, last = Model(rungs(text)), 0, None
    action = np.zeros(2)
    for verb, number, late in script:
        if verb == 'divert':
            ladder.divert(STOP_AND_HOLD, 'paused')
            model.divert()
        elif verb in ('release', 'forget'):
            getattr(ladder, verb)()
            getattr(model, verb)()
        for _ in range({'tick': 1, 'dry': number}.get(verb, 0)):
            rows = number if verb == 'tick' else 0
            now_ns += late * STEP_NS
            assert ladder.plays(rows) == model.may_play(rows)
            if ladder.plays(rows):
                action = action + 0.03
            decision = ladder.step(action if rows else None, rows, now_ns, last)
            kind, commands, calls = model.step(rows, now_ns)
            assert (decision.kind, decision.call_stop) == (kind, calls)
            assert (decision.wanted is not None) == commands
            assert decision.reason
            last = follow(decision, last)


def follow(decision, last):
    """Return the next last command; a fall makes no joint faster than it was or may be."""
    if decision.wanted is None:
        return last and last.after(None, STEP_S)
    wanted = decision.wanted
    if decision.kind is RungKind.PLAY or last is None:
        # what is played is the policy's: the cage bounds it
        return Last(wanted, np.full(2, 0.03 / STEP_S) if last else np.zeros(2))
    after = last.after(wanted, STEP_S)
    assert np.isfinite(wanted).all()
    if decision.kind is not RungKind.REPEAT_LAST:
        assert abs(wanted[1]) <= abs(last.position[1])
    moves = abs(after.velocity[0])
    if decision.kind in (RungKind.HOLD, RungKind.REPEAT_LAST):
        assert wanted[0] == last.position[0]
    elif decision.kind is RungKind.RAMP:
        assert moves <= abs(last.velocity[0]) + 1e-9
    else:
        assert moves <= max(abs(last.velocity[0]), TOP[0]) + 1e-9
    return after
