# SPDX-License-Identifier: Apache-2.0
"""The recurrent policy and its hidden states: what is remembered, of whom, for how long."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyError, PolicyRequest
from lerobot_serve.policies.runtime.request_inputs import SessionStates
from lerobot_serve.policies.synthetic.recurrent import load, RecurrentPolicy

SHAPE = 'joints=2,chunk=5,cameras=,fps=30'


def policy(limit: int = 64) -> RecurrentPolicy:
    return load(LoadOptions(SHAPE, state_limit=limit))


def asked(session: str, *state: float, episode: int = 0, start: bool = False) -> PolicyRequest:
    return PolicyRequest(
        session, np.array([state], np.float32), episode=episode, episode_start=start
    )


def chunk(policy: RecurrentPolicy, request: PolicyRequest) -> np.ndarray:
    (prediction,) = policy.predict([request])
    assert not prediction.state_lost
    return prediction.robot


def test_it_describes_itself():
    description = policy().describe()
    assert description.policy_type == 'recurrent'
    assert description.state_class == StateClass.RECURRENT
    assert description.fingerprint.startswith('recurrent@')
    assert (description.chunk_size, len(description.action_names)) == (5, 2)


def test_a_chunk_begins_at_the_state_and_goes_towards_the_average():
    served = policy()
    assert np.array_equal(chunk(served, asked('a', 1, 1, start=True)), np.ones((5, 2)))
    second = chunk(served, asked('a', 2, 1))
    assert second[0].tolist() == [2, 1]
    # the average is 1.25, and after two states two thirds of the way are gone
    assert second[-1] == pytest.approx([2 - 0.75 * 2 / 3, 1])
    assert (np.diff(second[:, 0]) < 0).all()


def test_how_long_the_episode_is_shows():
    served = policy()
    chunk(served, asked('a', 0, 0, start=True))
    first, second = (chunk(served, asked('a', 1, 1)) for _ in range(2))
    assert not np.array_equal(first, second)


steps = st.lists(
    st.tuples(
        st.sampled_from('abc'),
        st.integers(0, 2),
        st.booleans(),
        st.floats(-3, 3, width=32),
    ),
    max_size=30,
)


@given(steps, st.integers(1, 3))
def test_sessions_side_by_side_are_as_if_each_were_alone(steps, size):
    together, alone = policy(), {name: policy() for name in 'abc'}
    while steps:
        batch, rest = {}, []
        for name, episode, start, value in steps:
            if name in batch or len(batch) == size:
                rest.append((name, episode, start, value))
            else:
                batch[name] = asked(name, value, -value, episode=episode, start=start)
        steps = rest
        answers = together.predict(list(batch.values()))
        for (name, request), answer in zip(batch.items(), answers, strict=True):
            (expected,) = alone[name].predict([request])
            assert answer.robot.tobytes() == expected.robot.tobytes()
            assert answer.state_lost == expected.state_lost


@pytest.mark.parametrize('again', [{'episode': 2}, {'start': True}])
def test_an_episode_begins_anew(again):
    served = policy()
    chunk(served, asked('a', 5, 5, start=True))
    assert np.array_equal(chunk(served, asked('a', 1, 1, **again)), np.ones((5, 2)))


def test_a_state_that_made_way_is_said_to_be_lost_once():
    served = policy(limit=2)
    for name in 'abc':
        chunk(served, asked(name, 5, 5, start=True))
    (lost,) = served.predict([asked('a', 1, 1)])
    assert lost.state_lost
    assert np.array_equal(lost.robot, np.ones((5, 2)))
    assert not served.predict([asked('a', 2, 2)])[0].state_lost


def test_reset_forgets_one_session():
    served = policy()
    for name in 'ab':
        chunk(served, asked(name, 5, 5, start=True))
    served.reset('a')
    served.reset('never heard of')
    forgotten, kept = served.predict([asked('a', 1, 1), asked('b', 1, 1)])
    assert forgotten.state_lost
    assert not kept.state_lost
    assert not np.array_equal(forgotten.robot, kept.robot)


def test_a_batch_that_fails_changes_nothing():
    served, other = policy(), policy()
    for one in (served, other):
        chunk(one, asked('a', 5, 5, start=True))
    with pytest.raises(PolicyError, match=r'steps x 2, got \(1, 3\)'):
        served.predict([asked('a', 1, 1), asked('b', 1, 2, 3)])
    expected = chunk(other, asked('a', 1, 1))
    assert chunk(served, asked('a', 1, 1)).tobytes() == expected.tobytes()


def test_nothing_asked_is_nothing_answered():
    assert policy().predict([]) == []


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
