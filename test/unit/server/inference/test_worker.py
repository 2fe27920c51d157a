# SPDX-License-Identifier: Apache-2.0
"""The worker: every request is answered with a chunk, or with the reason why there is none."""

from __future__ import annotations

from types import SimpleNamespace
import weakref

from msgspec import structs
import numpy as np
import pytest
from support.replacing import replace
from support.server.fake_policy import FakePolicy
from support.server.worker_rig import (
    ASK,
    Bench,
    bench,
    FRAME,
    FRONT,
    gives,
    HEADER,
    JPEG,
    OBSERVATION,
    queued,
    raises,
    robot,
    ROWS,
    SESSION,
)

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.limits import TEXT_LIMIT
from lerobot_serve.contract.schema import Flag, MsgType, StateClass, Status
from lerobot_serve.policies.base import CacheCounts, PolicyRequest, Prediction
from lerobot_serve.server.inference.worker import (
    InferenceFailed,
    InferenceWorker,
    MAX_ESTIMATE_AGE_NS,
)
from lerobot_serve.server.observability.server_statistics import ServerStatistics


def test_an_answer_echoes_the_header_and_says_who_answered():
    made = bench()
    chunk = made.answer(OBSERVATION)
    assert chunk.header == replace(HEADER, msg_type=MsgType.CHUNK, flags=Flag.NONE)
    assert (chunk.client_id, chunk.episode_id) == ('robot_1', 'episode_1')
    assert (chunk.slot, chunk.policy) == ('a', 'fake@0123456789abcdef')
    assert (chunk.status, chunk.status_text, chunk.superseded) == (Status.OK, '', 4)
    assert np.array_equal(chunk.robot, np.resize(OBSERVATION.state, (4, 3)))
    assert np.array_equal(chunk.model, chunk.robot)
    assert made.statistics.chunks == 1


def test_durations_are_measured():
    # the clock ticks a millisecond at each look: begin, decoded, predicted
    chunk = bench().answer(OBSERVATION)
    assert (chunk.queue_wait_ms, chunk.processing_ms, chunk.inference_ms) == (1.0, 1.0, 1.0)
    assert 0 < chunk.server_load <= 1


def test_a_policy_that_knows_its_forward_pass_is_believed():
    chunk = bench(lambda _: Prediction(ROWS, ROWS, forward_ms=0.25)).answer(OBSERVATION)
    assert (chunk.inference_ms, chunk.processing_ms) == (0.25, 1.75)


def test_the_policy_sees_what_was_sent():
    made = bench()
    made.answer(OBSERVATION, replace(SESSION, request=structs.replace(ASK, robot_type='so101')))
    made.answer(replace(OBSERVATION, task='dance', images=(JPEG,)))
    first, second = made.policy.calls
    assert (first.session_id, first.task, first.robot_type) == (
        'robot_1#7',
        'fold the towel',
        'so101',
    )
    assert (first.episode, first.episode_start) == (2, True)
    assert np.array_equal(first.state, OBSERVATION.state)
    assert np.array_equal(first.images[FRONT], (FRAME,))
    assert second.task == 'dance'
    assert [frame.shape for frame in second.images[FRONT]] == [FRAME.shape]


def test_a_request_within_an_episode_is_not_its_start():
    made = bench()
    made.answer(replace(OBSERVATION, header=replace(HEADER, flags=Flag.POLICY_CHANGED)))
    assert not made.policy.calls[0].episode_start


POLICY_FAILURES = [
    (raises(RuntimeError('out of memory')), 'policy_error', 'RuntimeError: out of memory'),
    (raises(RuntimeError('a\0b \udcff' + 'ü' * 2000)), 'policy_error', 'a b ?ü'),
    (lambda _: None, 'policy_error', 'NoneType'),
    (lambda _: SimpleNamespace(model=ROWS, robot=ROWS), 'policy_error', 'forward_ms'),
    (gives(None), 'policy_error', 'the model chunk must be rows x 3 actions, got ()'),
    (gives([['x']]), 'policy_error', 'the prediction is not numeric (ValueError'),
    (gives(ROWS[:0]), 'policy_error', 'the model chunk must be rows x 3 actions, got (0, 3)'),
    (gives(ROWS[0]), 'policy_error', '(3,)'),
    (gives(ROWS[:, :2]), 'policy_error', '(4, 2)'),
    (gives(ROWS, ROWS[:, :2]), 'policy_error', 'the robot chunk must be'),
    (gives(ROWS, ROWS[:3]), 'policy_error', '4 rows, the robot chunk 3'),
    (gives(ROWS + np.nan), 'not_finite', 'the model chunk holds NaN'),
    (gives(ROWS, ROWS - np.inf), 'not_finite', 'the robot chunk holds NaN or infinity'),
    (gives(np.full((4, 3), 1e300)), 'not_finite', 'the model chunk'),
]


@pytest.mark.parametrize(('predict', 'reason', 'words'), POLICY_FAILURES)
def test_a_failing_policy_is_answered_for_and_counted(predict, reason, words):
    made = bench(predict)
    chunk = made.answer(OBSERVATION)
    assert chunk.status == Status[reason.upper()]
    assert words in chunk.status_text
    assert len(chunk.status_text.encode()) <= TEXT_LIMIT
    assert made.statistics.drop_counts() == {reason: 1}
    assert made.statistics.chunks == 0
    assert not chunk.robot.size
    assert not chunk.model.size


@pytest.mark.parametrize('predictions', [None, [], [Prediction(ROWS, ROWS)] * 2])
def test_a_wrong_number_of_predictions_is_the_policys_error(predictions, monkeypatch):
    made = bench()
    monkeypatch.setattr(made.policy, 'predict', lambda requests: predictions)
    assert made.answer(OBSERVATION).status == Status.POLICY_ERROR


def test_a_double_precision_chunk_is_sent_as_floats():
    chunk = bench(gives([[0.1, 0.2, 0.3]])).answer(OBSERVATION)
    assert np.array_equal(chunk.robot, np.array([[0.1, 0.2, 0.3]], np.float32))


def test_a_lost_state_is_flagged_and_counted():
    made = bench(lambda _: Prediction(ROWS, ROWS, state_lost=True))
    chunk = made.answer(OBSERVATION)
    assert (chunk.status, chunk.header.flags) == (Status.OK, Flag.STATE_LOST)
    assert made.statistics.drop_counts() == {'state_lost': 1}
    assert made.statistics.chunks == 1


def test_a_reset_that_raises_is_counted_and_hurts_nobody(monkeypatch):
    made = bench()

    def reset(session_id: str) -> None:
        raise RuntimeError(session_id)

    monkeypatch.setattr(made.policy, 'reset', reset)
    made.worker.reset('robot_1#7')
    assert made.statistics.drop_counts() == {'reset_failed': 1}
    assert made.answer(OBSERVATION).status == Status.OK


def test_warming_up_resets_counts_nothing_and_tells_how_long_the_last_took():
    made = bench(observation_steps=2)
    assert made.worker.warm_up(3) == 0.001
    assert made.statistics == ServerStatistics()
    assert made.statistics.batches.cumulative()[-1] == ('+Inf', 0.0)
    *requests, reset = made.policy.calls
    assert reset == 'warm-up'
    assert [(r.session_id, r.episode_start) for r in requests] == [('warm-up', True)] * 3
    assert requests[0].state.shape == (2, 3)
    assert [frame.shape for frame in requests[0].images[FRONT]] == [FRAME.shape] * 2


def test_a_policy_that_fails_while_warming_up_is_reset_too():
    made = bench(raises(RuntimeError('no kernel')))
    with pytest.raises(InferenceFailed, match='no kernel') as failed:
        made.worker.warm_up(2)
    assert failed.value.status == Status.POLICY_ERROR
    assert made.policy.calls[1:] == ['warm-up']
    assert made.statistics == ServerStatistics()
    assert made.statistics.batches.cumulative()[-1] == ('+Inf', 0.0)


def patient_session(within_s: float):
    return replace(SESSION, request=structs.replace(ASK, reply_deadline_s=within_s))


@pytest.mark.parametrize(
    ('within_s', 'service_s', 'late'),
    [(0.0, 1e6, False), (0.3, 0.25, False), (0.3, 0.2999, True), (0.0001, 0.0, True)],
)
def test_what_would_come_too_late_is_told_instead_of_computed(within_s, service_s, late):
    made = bench()
    made.statistics.reset_for_policy(service_s)
    # a millisecond has passed since it arrived
    chunk = made.answer(OBSERVATION, patient_session(within_s))
    assert chunk.status == (Status.TOO_LATE if late else Status.OK)
    assert made.statistics.drop_counts() == ({'too_late': 1} if late else {})
    assert bool(made.policy.calls) != late
    if late:
        assert f'reply_deadline_s ({within_s:g} s)' in chunk.status_text
        assert 'overloaded' in chunk.status_text


def test_a_policy_that_was_slow_is_tried_again_and_then_trusted():
    slow_s, now_ns = [0.5], [10 * MAX_ESTIMATE_AGE_NS]

    class Slow(FakePolicy):
        def predict(self, requests: list) -> list:
            now_ns[0] += int(1e9 * slow_s[0])
            return super().predict(requests)

    statistics = ServerStatistics()
    worker = InferenceWorker(
        Slow(), slot='a', statistics=statistics, image_threads=1, clock=lambda: now_ns[0]
    )

    def ask() -> int:
        asked = replace(queued(OBSERVATION, patient_session(0.3)), arrived_ns=now_ns[0])
        ((_, chunk),) = worker.process([asked])
        return chunk.status

    # a machine that was busy for a while
    for _ in range(50):
        now_ns[0] += 2 * MAX_ESTIMATE_AGE_NS
        assert ask() == Status.OK
    assert ask() == Status.TOO_LATE
    slow_s[0] = 0.01
    assert ask() == Status.TOO_LATE
    now_ns[0] += 2 * MAX_ESTIMATE_AGE_NS
    assert [ask() for _ in range(3)] == [Status.OK] * 3


def test_what_comes_too_late_is_not_even_looked_at():
    made = bench()
    made.statistics.reset_for_policy(1.0)
    raw = wire_observation.encode(OBSERVATION)
    begin = raw.index(b'episode_1') + len('episode_1') + 1
    broken = raw[:begin] + b'\xff' * (len(raw) - begin)
    assert made.answer(broken, patient_session(0.5)).status == Status.TOO_LATE
    assert made.answer(broken).status == Status.BAD_OBSERVATION


class CachingFake(FakePolicy):
    """Finds each image of a session it has seen, and counts as the policies with a cache do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.hits = self.misses = 0

    def predict(self, requests):
        for request in requests:
            self.hits += request.session_id in self.seen
            self.misses += request.session_id not in self.seen
            self.seen.add(request.session_id)
        return super().predict(requests)

    def take_cache_counts(self) -> CacheCounts:
        counts = CacheCounts(self.hits, self.misses)
        self.hits = self.misses = 0
        return counts


def test_hits_of_a_cache_are_counted_except_those_of_the_warm_up():
    made = Bench(CachingFake())
    made.worker.warm_up(3)
    assert (made.statistics.cache_hits, made.statistics.cache_misses) == (0, 0)
    for _ in range(3):
        made.answer(OBSERVATION)
    assert (made.statistics.cache_hits, made.statistics.cache_misses) == (2, 1)


# several requests answered together: what is wrong with one is no trouble of the others


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
