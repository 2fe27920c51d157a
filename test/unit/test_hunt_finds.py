"""
With a fix taken out, the hunt finds the fault again: each of these was a fault of 0.1.0, or is an
invariant that must not rest on one line without a look-out.
"""

from __future__ import annotations

import pytest

from lerobot_serve.bench import hunt
from lerobot_serve.bench.hunting.run import Subject
from lerobot_serve.edge import authority
from lerobot_serve.edge.states import State

EDGE, ROUTER = hunt.SUBJECTS['edge'], hunt.SUBJECTS['router']
WITHIN_STEPS = 40_000


def found(subject: Subject, rule: str, seed: int = 1) -> None:
    """Hunt until this rule is broken; fail when it is not within so many steps."""
    for _ in range(20):
        hunted = subject.hunt(WITHIN_STEPS // 20, seed, findings=1)
        if any(finding.rule == rule for finding in hunted.findings):
            return
        seed += hunted.runs
    pytest.fail(f'{rule} was not found within {WITHIN_STEPS} steps')


# who may move the robot


def rules_without(cause: str) -> tuple[authority.Rule, ...]:
    return tuple(rule for rule in authority.RULES if rule.cause != cause)


def teardown_first() -> tuple[authority.Rule, ...]:
    """E1: a robot that is given up is torn down, whoever has paused it."""
    teardown = next(r for r in reversed(authority.RULES) if r.commander.name == 'TEARDOWN')
    dead = teardown._replace(
        holds=lambda g: g.orders.state is State.DEAD and g.supply is not authority.Supply.NEVER
    )
    return (dead, *authority.RULES)


@pytest.mark.parametrize(
    ('rules', 'rule'),
    [
        (teardown_first, 'authority'),
        (lambda: rules_without('paused'), 'authority'),
        (lambda: rules_without('no_episode'), 'authority'),
        (lambda: rules_without('stopped'), 'stop'),
    ],
)
def test_who_may_move_the_robot(monkeypatch, rules, rule):
    monkeypatch.setattr(authority, 'RULES', rules())
    found(EDGE, rule)
