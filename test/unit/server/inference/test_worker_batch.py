# SPDX-License-Identifier: Apache-2.0
"""Several requests answered together: what is wrong with one is no trouble of the others."""

from __future__ import annotations

from dataclasses import replace
import weakref

import numpy as np
import pytest
from support.server.fake_policy import FakePolicy
from support.server.worker_rig import bench, HEADER, queued, robot, ROWS

from lerobot_serve.contract.schema import StateClass, Status
from lerobot_serve.policies.base import PolicyRequest, Prediction

BROKEN, RAISES, NAN = 2, 3, 4
STATUSES = {
    BROKEN: Status.BAD_OBSERVATION,
    RAISES: Status.POLICY_ERROR,
    NAN: Status.NOT_FINITE,
}


def moody(request: PolicyRequest) -> Prediction:
    """Raise for one robot, give NaN to another one, and serve the others."""
    number = request.state[0, 0]
    if number == RAISES:
        raise RuntimeError('not this one')
    chunk = ROWS + (np.nan if number == NAN else number)
    return Prediction(chunk, 2 * chunk)


def mail_of(number: int):
    observation, session = robot(number)
    if number == BROKEN:
        observation = replace(observation, state=np.zeros((1, 2), np.float32))
    return queued(observation, session)


def sizes(policy: FakePolicy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will hold how many were asked for together, each time."""
    asked, predict = [], policy.predict

    def counted(requests: list[PolicyRequest]) -> list[Prediction]:
        asked.append(len(requests))
        return predict(requests)

    monkeypatch.setattr(policy, 'predict', counted)
    return asked


def test_when_all_is_well_the_policy_is_asked_once(monkeypatch):
    made = bench()
    asked = sizes(made.policy, monkeypatch)
    chunks = made.answer_all(*map(mail_of, (5, 6, 7)))
    assert asked == [3]
    assert [chunk.robot[0, 0] for chunk in chunks] == [5, 6, 7]
    assert [chunk.client_id for chunk in chunks] == ['robot_5', 'robot_6', 'robot_7']
    assert made.statistics.chunks == 3


@pytest.mark.parametrize('numbers', [(1, 2, 3, 4, 5), (5, 4, 3, 2, 1), (3, 1), (4, 1), (2, 1)])
def test_the_others_get_exactly_what_they_would_have_got_alone(numbers):
    made = bench(moody)
    chunks = made.answer_all(*map(mail_of, numbers))
    for number, chunk in zip(numbers, chunks, strict=True):
        (alone,) = bench(moody).answer_all(mail_of(number))
        assert chunk.client_id == alone.client_id == f'robot_{number}'
        assert chunk.status == alone.status == STATUSES.get(number, Status.OK)
        assert chunk.status_text == alone.status_text
        assert chunk.robot.tobytes() == alone.robot.tobytes()
        assert chunk.model.tobytes() == alone.model.tobytes()
    served = [number for number in numbers if number not in STATUSES]
    assert made.statistics.chunks == len(served)
    failed = {n for n in numbers if n in STATUSES}
    reasons = {BROKEN: 'wrong_shape', RAISES: 'policy_error', NAN: 'not_finite'}
    assert made.statistics.drop_counts() == {reasons[n]: 1 for n in failed}


def test_after_a_raise_each_is_asked_for_alone(monkeypatch):
    made = bench(moody)
    asked = sizes(made.policy, monkeypatch)
    made.answer_all(*map(mail_of, (1, RAISES, 5)))
    assert asked == [3, 1, 1, 1]


def test_the_memory_of_a_failed_batch_is_free_when_each_is_asked_for_alone(monkeypatch):
    class Activations:
        """What a forward pass holds, such as the tensors of a device."""

    made, held, free = bench(), [], []
    alone = made.policy.predict

    def predict(requests: list[PolicyRequest]) -> list[Prediction]:
        free.extend(each() is None for each in held)
        activations = Activations()
        held.append(weakref.ref(activations))
        if len(requests) > 1:
            raise MemoryError('out of memory')
        return alone(requests)

    monkeypatch.setattr(made.policy, 'predict', predict)
    chunks = made.answer_all(*map(mail_of, (5, 6)))
    assert [chunk.status for chunk in chunks] == [Status.OK, Status.OK]
    assert len(free) == 3 and all(free)


def test_a_malformed_request_never_reaches_the_policy(monkeypatch):
    made = bench(moody)
    asked = sizes(made.policy, monkeypatch)
    made.answer_all(*map(mail_of, (BROKEN, 1)))
    assert asked == [1]
    made.answer_all(mail_of(BROKEN))
    assert asked == [1]


def test_too_few_predictions_for_a_batch_cost_nobody_a_chunk(monkeypatch):
    made = bench()
    predict = made.policy.predict
    monkeypatch.setattr(made.policy, 'predict', lambda requests: predict(requests[:1]))
    chunks = made.answer_all(*map(mail_of, (5, 6)))
    assert [chunk.robot[0, 0] for chunk in chunks] == [5, 6]


@pytest.mark.parametrize('numbers', [(RAISES,), (NAN,), (1, RAISES, NAN, BROKEN)])
def test_a_recurrent_session_whose_request_failed_begins_anew(numbers):
    made = bench(moody, state_class=StateClass.RECURRENT)
    made.answer_all(*map(mail_of, numbers))
    resets = [call for call in made.policy.calls if isinstance(call, str)]
    assert resets == [f'robot_{number}#7' for number in numbers if number in (RAISES, NAN)]


def test_a_policy_without_state_has_nothing_to_forget():
    made = bench(moody)
    made.answer_all(*map(mail_of, (RAISES, NAN)))
    assert not [call for call in made.policy.calls if isinstance(call, str)]


def seeds(stochastic: bool, *numbered: tuple[int, dict[str, int]]) -> list[int]:
    """Return the seeds of requests: those in the chunks, which are those the policy was given."""
    made = bench(stochastic=stochastic)
    told = []
    for number, header in numbered:
        told.append(made.answer(*robot(number, header=replace(HEADER, **header))).seed)
    assert told == [request.seed for request in made.policy.calls]
    return told


ONE = (1, {'seq': 1, 'episode': 1})
OTHERS = [(2, {'seq': 1, 'episode': 1}), (1, {'seq': 2, 'episode': 1})]
OTHERS += [(1, {'seq': 1, 'episode': 2}), (1, {'seq': 11, 'episode': 1})]


def test_a_seed_is_stable_and_another_one_for_each_request():
    first = seeds(True, ONE, *OTHERS)
    assert len(set(first)) == len(first)
    assert all(0 < seed < 2**63 for seed in first)
    assert seeds(True, ONE) == first[:1]
    assert seeds(True, *OTHERS) == first[1:]


def test_a_policy_that_draws_nothing_has_no_seed():
    assert seeds(False, ONE, *OTHERS) == [0] * 5
