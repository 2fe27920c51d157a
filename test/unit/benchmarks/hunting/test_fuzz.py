# SPDX-License-Identifier: Apache-2.0
"""The hunt finds nothing in the code as it is: some thousand random steps of edge and router."""

from __future__ import annotations

from itertools import product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, RuleBasedStateMachine
import pytest

from benchmarks import hunt
from benchmarks.hunting.driver import draw_script, FuzzTarget, play

EDGE, ROUTER = hunt.TARGETS['edge'], hunt.TARGETS['router']
FEW = settings(max_examples=5, stateful_step_count=12)


@pytest.mark.parametrize(('subject', 'steps'), [(EDGE, 4000), (ROUTER, 2400)])
def test_random_accidents_violate_no_invariant(subject, steps):
    hunted = subject.hunt(steps, 1)
    assert not hunted.findings
    assert hunted.steps == steps
    assert set(hunted.happened) == set(subject.rules)


@pytest.mark.parametrize('subject', [EDGE, ROUTER])
def test_a_seed_gives_the_same_run_each_time(subject):
    script = draw_script(8, subject.rules, 400)
    assert script == draw_script(8, subject.rules, 400) != draw_script(9, subject.rules, 400)
    ends = []
    for _ in range(2):
        models = []

        def keep(seed, models=models):
            models.append(subject.model_of(seed))
            return models[-1]

        play(keep, subject.rules, 8, script, 400)
        checker = models[0].checker
        ends.append((models[0].now_ns, checker.witnessed))
    assert ends[0] == ends[1]
    assert ends[0][1] > 10


class Hunt(RuleBasedStateMachine):
    """Hypothesis chooses what happens, and how long nothing does."""

    subject: FuzzTarget

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed):
        self.model = self.subject.model_of(seed)

    @rule(data=st.data(), steps=st.integers(1, 30))
    def happen(self, data, steps):
        rules = self.subject.rules
        lines = [(n, a) for n in rules for a in product(*rules[n].arguments)]
        name, arguments = data.draw(st.sampled_from(lines))
        rules[name].act(self.model, *arguments)
        for _ in range(steps):
            self.model.step()

    def teardown(self):
        if hasattr(self, 'model'):
            self.model.close()


class EdgeHunt(Hunt):
    subject = EDGE


class RouterHunt(Hunt):
    subject = ROUTER


TestEdgeHunt, TestRouterHunt = EdgeHunt.TestCase, RouterHunt.TestCase
TestEdgeHunt.settings = TestRouterHunt.settings = FEW
