# SPDX-License-Identifier: Apache-2.0
"""Hidden states by session: whose, of which episode, how many."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.policies.runtime.request_inputs import SessionStates


def test_a_state_is_its_sessions_and_its_episodes():
    states = SessionStates(4)
    states.keep('a', 1, 'first')
    states.keep('b', 1, 'other')
    assert states.take('a', 1, False) == ('first', False)
    assert states.take('b', 1, False) == ('other', False)


def test_an_episode_that_starts_begins_anew():
    states = SessionStates(4)
    states.keep('a', 1, 'old')
    assert states.take('a', 1, True) == (None, False)
    assert states.take('a', 2, False) == (None, False)


def test_going_on_with_nothing_remembered_is_a_loss():
    states = SessionStates(4)
    assert states.take('a', 1, False) == (None, True)
    assert states.take('a', 1, True) == (None, False)
    states.keep('a', 1, 'state')
    states.discard('a')
    states.discard('never heard of')
    assert states.take('a', 1, False) == (None, True)


def test_taking_changes_nothing():
    states = SessionStates(1)
    states.keep('a', 1, 'state')
    states.take('a', 2, True)
    states.take('b', 1, False)
    assert states.take('a', 1, False) == ('state', False)


@pytest.mark.parametrize('limit', [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match=f'state_limit must be at least 1, got {limit}'):
        SessionStates(limit)


KEPT = st.lists(st.tuples(st.sampled_from('abcde'), st.integers(0, 2), st.integers()))


@given(KEPT, st.integers(1, 4))
def test_the_most_recently_kept_are_remembered(kept, limit):
    states, model = SessionStates(limit), OrderedDict()
    for session, episode, state in kept:
        states.keep(session, episode, state)
        model.pop(session, None)
        model[session] = (episode, state)
    remembered = dict(list(model.items())[-limit:])
    assert len(states) == len(remembered)
    for session in 'abcde':
        episode, state = remembered.get(session, (0, None))
        assert states.take(session, episode, False) == (state, session not in remembered)
