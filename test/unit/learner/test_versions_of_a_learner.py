# SPDX-License-Identifier: Apache-2.0
"""What a round builds on: the newest version that nothing speaks against; what a canary says."""

from __future__ import annotations

from itertools import combinations

import pytest

from lerobot_serve.contract.records import CanaryState
from lerobot_serve.learner.versions import (
    canary_news,
    choose_parent,
    is_barred,
    lineage,
    NoParent,
    PolicyVerdict,
    VERDICTS,
    Version,
)

State = CanaryState.State

# 1 <- 2 <- 4, 1 <- 3
TREE = [
    Version('p@1', 'p@0', 1),
    Version('p@2', 'p@1', 2),
    Version('p@3', 'p@1', 3),
    Version('p@4', 'p@2', 4),
]
ANCESTORS = {'1': '01', '2': '012', '3': '013', '4': '0124'}


def always(_: str) -> bool:
    return True


SETS = [frozenset(each) for count in range(6) for each in combinations('01234', count)]


@pytest.mark.parametrize('rejected', SETS)
@pytest.mark.parametrize('lost', ['', '4', '43', '4321'])
def test_the_newest_that_is_there_and_has_no_rejected_ancestor(rejected, lost):
    allowed = [
        digest for digest in '4321' if not set(ANCESTORS[digest]) & rejected and digest not in lost
    ]
    expected = (allowed or ['0'])[0]

    def choose() -> str:
        return choose_parent(TREE, rejected, 'p@0', lambda each: each[-1] not in lost)

    if expected in rejected:
        with pytest.raises(NoParent, match=r'p@0 was rolled back.*set the parameter parent'):
            choose()
    else:
        assert choose() == f'p@{expected}'


@pytest.mark.parametrize('rejected', [frozenset(), frozenset('2'), frozenset('4')])
@pytest.mark.parametrize('promoted', SETS)
def test_with_a_canary_only_a_promoted_one_is_built_upon(promoted, rejected):
    allowed = [
        digest for digest in '4321' if digest in promoted and not set(ANCESTORS[digest]) & rejected
    ]
    found = choose_parent(TREE, rejected, 'p@0', always, promoted)
    assert found == f'p@{(allowed or ["0"])[0]}'


def test_without_any_version_and_parent_it_says_what_to_do():
    with pytest.raises(NoParent, match='set the parameter parent to a version or a folder'):
        choose_parent([], [], '', always)


def test_a_name_is_no_part_of_the_identity():
    assert is_barred('other@4', TREE, {'2'})
    assert [each.id for each in lineage('other@4', TREE)] == ['p@4', 'p@2', 'p@1']


def test_a_circle_ends():
    circle = [Version('p@1', 'p@2', 1), Version('p@2', 'p@1', 2)]
    assert len(lineage('p@2', circle)) == 2


def canary(state: State, planned: str = 'p@1', **fields: str) -> CanaryState:
    return CanaryState(
        state=state, planned_policy=planned, candidate_policy='p@2', text='why', **fields
    )


@pytest.mark.parametrize('state', [*State, State(99)])
def test_only_an_end_is_a_verdict(state):
    news = canary_news(canary(state))
    if state is State.ROLLED_BACK:
        assert news == (PolicyVerdict.REJECTED, 'p@1', 'why', '')
    elif state is State.PROMOTED:
        assert news == (PolicyVerdict.ACCEPTED, 'p@1', 'why', '')
    else:
        assert news is None


@pytest.mark.parametrize('state', [*State, State(99)])
def test_the_champion_is_news_in_each_state(state):
    news = canary_news(canary(state, champion_policy='c@3'))
    assert news.champion == 'c@3'
    assert news.verdict is VERDICTS.get(state, PolicyVerdict.NONE)
    assert bool(news.policy) == (news.verdict is not PolicyVerdict.NONE)


def test_the_policy_of_the_plan_counts_not_another_one_in_its_slot():
    assert canary_news(canary(State.ROLLED_BACK, '')).policy == 'p@2'
    assert canary_news(CanaryState(state=State.ROLLED_BACK)) is None
