# SPDX-License-Identifier: Apache-2.0
"""What each state of a canary means for its candidate."""

from __future__ import annotations

import re

import pytest
from support.paths import REPOSITORY

from lerobot_serve.learner.versions.verdicts import canary_news, STATES, Verdict, VERDICTS


def test_the_states_are_those_of_the_message():
    text = (REPOSITORY / 'lerobot_serve_interfaces/msg/CanaryState.msg').read_text()
    numbers = {int(n): name for name, n in re.findall(r'uint8 ([A-Z_]+)=(\d+)', text)}
    assert dict(enumerate(STATES)) == numbers
    assert set(VERDICTS) == set(STATES)


@pytest.mark.parametrize('state', [*STATES, '', 'NEW'])
def test_only_an_end_is_a_verdict(state):
    news = canary_news(state, 'p@1', 'p@2', 'why')
    if state == 'ROLLED_BACK':
        assert news == (Verdict.REJECTED, 'p@1', 'why', '')
    elif state == 'PROMOTED':
        assert news == (Verdict.ACCEPTED, 'p@1', 'why', '')
    else:
        assert news is None


@pytest.mark.parametrize('state', [*STATES, '', 'NEW'])
def test_the_champion_is_news_in_each_state(state):
    news = canary_news(state, 'p@1', 'p@2', 'why', 'c@3')
    assert news.champion == 'c@3'
    assert news.verdict is VERDICTS.get(state, Verdict.NONE)
    assert bool(news.policy) == (news.verdict is not Verdict.NONE)


def test_the_policy_of_the_plan_counts_not_another_one_in_its_slot():
    assert canary_news('ROLLED_BACK', '', 'p@2', '').policy == 'p@2'
    assert canary_news('ROLLED_BACK', '', '', '') is None
