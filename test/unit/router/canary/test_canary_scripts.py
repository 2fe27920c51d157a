# SPDX-License-Identifier: Apache-2.0
"""The canary under any sequence of facts, operators' words, restarts and jumps of the clock."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, RuleBasedStateMachine
from support.router.canary_rig import plan, QUICK, S, STEPS, World

from lerobot_serve.router.canary.canary import Canary, CanaryCommandRejected
from lerobot_serve.router.canary.facts import COUNTERS, not_ready_reason
from lerobot_serve.router.canary.guards.rules import (
    missing_data,
    rollback_reason,
)
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL

SLOTS = st.sampled_from(('candidate', 'champion'))
FEW = st.integers(0, 30)
WORDS = st.sampled_from(('pause', 'resume', 'promote', 'rollback'))


class AnyScript(RuleBasedStateMachine):
    """What must hold whatever happens."""

    @initialize(steps=st.integers(0, 3))
    def begin(self, steps):
        self.world = World(Canary(plan(), QUICK))
        self.policies = 0
        # many scripts would never come so far
        for _ in range(steps):
            self.world.good_episodes()
            self.world.wait(70)

    @property
    def canary(self):
        return self.world.canary

    @property
    def share(self):
        return self.canary.share_percent

    @rule(slot=SLOTS, successes=FEW, failures=st.integers(0, 3))
    def episodes_end(self, slot, successes, failures):
        self.world.end(slot, successes, failures)

    @rule(
        slot=SLOTS,
        kind=st.sampled_from(('unreported', 'aborted', 'moved', 'open')),
        count=FEW,
    )
    def episodes_end_without_a_verdict(self, slot, kind, count):
        self.world.end(slot, **{kind: count})

    @rule(slot=SLOTS, what=st.sampled_from(('success', 'failure', 'aborted', 'moved')))
    def verdicts_come_late(self, slot, what):
        self.world.verdicts(slot, what)

    @rule(kind=st.sampled_from(('failed_replies', 'trips', 'fallbacks')), count=FEW)
    def things_go_wrong(self, kind, count):
        self.world.grow('candidate', **{kind: count})

    @rule(slot=SLOTS, latency_ms=st.sampled_from((20.0, 60.0, 90.0, 500.0, float('nan'))))
    def latency_changes(self, slot, latency_ms):
        self.world.change(slot, latency_ms_p95=latency_ms)

    @rule(slot=SLOTS, healthy=st.booleans())
    def health_changes(self, slot, healthy):
        self.world.change(slot, healthy=healthy)

    @rule(missing=st.sampled_from(('', '', 'no shadow')))
    def something_is_missing(self, missing):
        self.world.others = {'missing': missing}

    @rule(slot=SLOTS, known=st.booleans())
    def policy_changes(self, slot, known):
        self.policies += 1
        self.world.change(slot, policy=f'p@{self.policies}' if known else '')

    @rule(slot=SLOTS)
    def the_counters_begin_anew(self, slot):
        self.world.change(slot, **dict.fromkeys(COUNTERS, 0))

    @rule(back_s=st.integers(0, 10**6))
    def the_clock_jumps_back(self, back_s):
        self.world.now_ns -= back_s * S

    @rule(word=WORDS)
    def an_operator_speaks(self, word):
        before, state = self.share, self.canary.state
        forbidden = state not in ON_TRIAL
        try:
            getattr(self.canary, word)('why')
        except CanaryCommandRejected as error:
            assert str(error)
            assert (self.share, self.canary.state) == (before, state)
            return
        if word == 'promote':
            assert not forbidden
            assert self.share > before
        elif word == 'rollback':
            assert self.share == 0
        else:
            assert self.share == before

    @rule()
    def the_router_starts_again(self):
        before, state = self.share, self.canary.state
        memory = self.canary.snapshot()
        anew = Canary(plan(), QUICK)
        assert anew.restore(memory) == ''
        self.world.canary = anew
        assert (self.share, anew.state, anew.snapshot()) == (before, state, memory)

    @rule(after_s=st.sampled_from((0.2, 5.0, 70.0, 10.0**6)))
    def poll(self, after_s):
        before, state, step = self.share, self.canary.state, self.canary.step
        policies = dict(self.canary.record.policies)
        happened = self.world.poll(after_s=after_s)
        assert (self.canary.state is state) or happened
        if self.share > before:
            self.check_the_rise(before, state, step, [h.what for h in happened])
        if (
            state in (CanaryPhase.PROMOTED, CanaryPhase.ROLLED_BACK)
            and self.canary.state is not state
        ):
            assert self.world.candidate.policy not in ('', policies['candidate'])

    def check_the_rise(self, before, state, step, happened):
        facts = self.world.facts
        assert not facts.missing
        for slot in ('candidate', 'champion'):
            assert not_ready_reason(slot, getattr(facts, slot)) == ''
        if 'started' in happened:
            assert (self.share, self.canary.step) == (int(STEPS[0]), 0)
            return
        assert happened[-1] == 'promoted'
        assert state in (CanaryPhase.RUNNING, CanaryPhase.UNDECIDED)
        assert self.canary.step == step + 1
        assert self.share == int(STEPS[step + 1])

    @precondition(lambda self: self.canary.state in (CanaryPhase.RUNNING, CanaryPhase.UNDECIDED))
    @rule()
    def what_is_seen_now_decides(self):
        """Foresee from the counts of the step whether the next look may promote."""
        step = self.canary.step
        self.world.poll(after_s=0.0)
        if self.canary.state not in ON_TRIAL or self.canary.step != step:
            return
        seen = self.world.seen
        limits = self.canary.rules
        blind = missing_data(seen, limits)
        guard = rollback_reason(seen, self.canary.record.alarms, limits)
        self.world.poll(after_s=70.0)
        if guard:
            assert self.canary.state is CanaryPhase.ROLLED_BACK
        elif blind:
            assert self.canary.step == step
            assert self.canary.state is not CanaryPhase.PROMOTED

    @invariant()
    def the_share_is_that_of_the_state(self):
        state = self.canary.state
        if state in (CanaryPhase.WAITING, CanaryPhase.ROLLED_BACK):
            assert self.share == 0
        elif state is CanaryPhase.PROMOTED:
            assert self.share == 100
        else:
            assert self.share == int(STEPS[self.canary.step]) < 100

    @invariant()
    def every_episode_is_counted_once(self):
        trial = self.canary.record.trial
        opens = list(trial.open.values())
        for name, arm in trial.totals.items():
            assert arm.open == opens.count(name)

    @invariant()
    def there_is_always_a_reason(self):
        assert self.canary.text.startswith(self.canary.state.word.replace('_', ' ') + ': ')
        assert all(entry.what and entry.why for entry in self.canary.history)


TestAnyScript = AnyScript.TestCase
TestAnyScript.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
