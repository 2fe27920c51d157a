# SPDX-License-Identifier: Apache-2.0
"""Preparation: from parameters to a policy that is loaded, checked, warm and ready."""

from __future__ import annotations

from dataclasses import fields

import pytest
from support.replacing import replace
from support.server.fake_policy import FakePolicy
from support.server.request_queue_rig import name_of, queued
from support.server.server_core_rig import ask, request
from support.server.worker_rig import raises, ROWS

from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError, Prediction
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference import policy_loading, request_validation
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.messages import UNCONFIGURED_TEXT
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.policy_swap import check_policy_path_change

S = 1_000_000_000
GIVEN = ServerParameters(
    policy_kind='fake',
    policy_path='somewhere',
    policy_name='mine',
    device='cuda:1',
    cpu_threads=3,
    memory_margin_mb=7,
    embedding_cache_mb=5,
    state_names=('a', 'b'),
    action_names=('c',),
    trained_fps=12.5,
    allow_missing_statistics=True,
    max_recurrent_states=9,
    dtype='float16',
    trusted_packages=('mine',),
    max_sessions=5,
    default_task='fold',
    pin_task=True,
    require_trained_fps=True,
    session_grace_s=1.5,
    session_idle_s=2.5,
    warmup_inferences=3,
    network_round_trip_ms=20.0,
    slot='b',
)


@pytest.fixture
def loaded(monkeypatch):
    """Let the registry give a fake policy; return a function that prepares it."""

    def load(kind: str, loading: LoadOptions) -> FakePolicy:
        policy.asked = kind, loading
        return policy

    def prepare(made: FakePolicy, parameters: ServerParameters = GIVEN):
        nonlocal policy
        policy = made
        return policy_loading.load_worker(parameters, 'the default', statistics)

    policy, statistics = None, ServerStatistics()
    prepare.statistics = statistics
    monkeypatch.setattr(registry, 'load', load)
    return prepare


def test_all_that_the_operator_says_of_the_policy_reaches_its_loader(loaded):
    policy = FakePolicy()
    loaded(policy)
    expected = LoadOptions(
        path='somewhere',
        device='cuda:1',
        name='mine',
        state_names=('a', 'b'),
        action_names=('c',),
        trained_fps=12.5,
        allow_missing_statistics=True,
        cpu_threads=3,
        memory_margin_bytes=7 * 2**20,
        embedding_cache_bytes=5 * 2**20,
        state_limit=9,
        dtype='float16',
        trusted_packages=('mine',),
    )
    assert policy.asked == ('fake', expected)
    # each of them differs from what a policy gets unless it is told
    same = [f.name for f in fields(LoadOptions) if getattr(expected, f.name) == f.default]
    assert same == []


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    ('kind', 'path', 'expected'),
    [
        ('builtin', '', 'the default'),
        ('builtin', 'mine', 'mine'),
        ('lerobot', 'mine', 'mine'),
    ],
)
def test_a_path_that_is_given_wins_over_the_default(loaded, kind, path, expected):
    policy = FakePolicy()
    loaded(policy, replace(GIVEN, policy_kind=kind, policy_path=path))
    assert policy.asked[1].path == expected


@pytest.mark.parametrize('kind', ['builtin', 'exported', 'lerobot'])
def test_without_a_policy_nothing_is_served(kind):
    with pytest.raises(PolicyError, match='policy_path is empty: no policy to serve'):
        policy_loading.load_worker(ServerParameters(policy_kind=kind), '', ServerStatistics())


def test_a_policy_is_warm_before_it_serves_and_nothing_of_that_is_counted(loaded):
    policy = FakePolicy()
    loaded(policy)
    assert [isinstance(call, str) for call in policy.calls] == [False, False, False, True]
    statistics = loaded.statistics
    assert statistics.service_s() > 0
    assert (statistics.chunks, statistics.requests, statistics.drop_counts()) == (0, 0, {})
    assert statistics.percentile_ms('inference', 50) == 0


@pytest.mark.parametrize(
    ('predict', 'words'),
    [
        (raises(RuntimeError('no kernel')), 'the policy raised RuntimeError: no kernel'),
        # what a library in Rust raises when it panics
        (raises(PanicException('regex')), 'the policy raised PanicException: regex'),
        (lambda _: Prediction(ROWS[:, :1], ROWS), 'the model chunk must be rows x 3'),
        (lambda _: Prediction(ROWS, ROWS * float('nan')), 'the robot chunk holds NaN'),
    ],
)
def test_a_policy_that_cannot_answer_is_not_served(loaded, predict, words):
    with pytest.raises(PolicyError) as refused:
        loaded(FakePolicy(predict))
    assert str(refused.value).startswith('The policy fails on an empty observation: ')
    assert words in str(refused.value)
    assert loaded.statistics.service_s() == 0


def test_a_failed_warm_up_leaves_no_thread_behind(loaded, monkeypatch):
    closed = []
    monkeypatch.setattr(policy_loading.InferenceWorker, 'close', lambda self: closed.append(self))
    with pytest.raises(PolicyError):
        loaded(FakePolicy(raises(RuntimeError())))
    assert len(closed) == 1


def test_a_fingerprint_that_no_message_can_hold_is_refused(loaded):
    longest = 'ü' * (FINGERPRINT_LIMIT // 2)
    assert loaded(FakePolicy(fingerprint=longest)).description.fingerprint == longest
    policy = FakePolicy(fingerprint=longest + 'x')
    with pytest.raises(PolicyError, match='is over 256 bytes; give it a shorter policy_name'):
        loaded(policy)
    assert policy.calls == []


@pytest.mark.parametrize(('field', 'limit'), [('policy_type', 64), ('device', 32)])
def test_a_text_that_no_message_can_hold_is_refused(loaded, field, limit):
    loaded(FakePolicy(**{field: 'x' * limit}))
    with pytest.raises(PolicyError, match=f'the {field} .* is over {limit} bytes'):
        loaded(FakePolicy(**{field: 'x' * (limit + 1)}))


def test_what_a_loader_says_is_passed_on(loaded, monkeypatch):
    def load(kind: str, loading: LoadOptions) -> FakePolicy:
        raise PolicyError('no such file; correct policy_path')

    monkeypatch.setattr(registry, 'load', load)
    with pytest.raises(PolicyError, match='no such file; correct policy_path'):
        loaded(FakePolicy())


def core(loaded, policy: FakePolicy, parameters: ServerParameters, request_queue: RequestQueue):
    worker = loaded(policy, parameters)
    return ServerCore(worker, request_queue, loaded.statistics, parameters)


def test_what_is_prepared_takes_no_sessions_yet(loaded):
    parameters = replace(GIVEN, pin_task=False)
    made = core(loaded, FakePolicy(), parameters, RequestQueue())
    with pytest.raises(SessionRefused) as refused:
        made.open(ask(), 0)
    assert refused.value.code == Refusal.NOT_READY
    made.accept_requests()
    session, _ = made.open(ask(), 0)
    assert session.task == 'fold'


def picked(request_queue: RequestQueue) -> list[str]:
    for name, dry in (('a', 3), ('b', 1), ('c', 2)):
        request_queue.put(queued(name, dry=dry))
    names = [name_of(one) for one in request_queue.take_batch()]
    request_queue.drop_all()
    return names


def test_the_scheduler_is_the_operators_and_changes_live(loaded):
    request_queue = RequestQueue(lambda: S)
    made = core(loaded, FakePolicy(batch_limit=2), GIVEN, request_queue)
    assert picked(request_queue) == ['a']
    made.apply_parameters(replace(GIVEN, scheduler='lowest_queue_first'))
    assert picked(request_queue) == ['b']
    made.apply_parameters(replace(GIVEN, scheduler='dynamic_batching'))
    # no more than the policy can
    assert picked(request_queue) == ['a', 'b']
    made.apply_parameters(replace(GIVEN, scheduler='dynamic_batching', max_batch_size=1))
    assert picked(request_queue) == ['a']


def test_the_window_of_a_batch_is_the_operators(loaded, monkeypatch):
    request_queue, waits = RequestQueue(lambda: 0), []
    parameters = replace(
        GIVEN, scheduler='dynamic_batching', max_batch_delay_ms=2.5, pin_task=False
    )
    made = core(loaded, FakePolicy(), parameters, request_queue)
    made.accept_requests()
    for number in range(4):
        made.open(ask(number), 0)

    def wait(timeout_s: float) -> None:
        waits.append(timeout_s)
        request_queue.close()

    monkeypatch.setattr(request_queue._changed, 'wait', wait)
    request_queue.put(queued('a'))
    assert request_queue.take_batch() is None
    assert waits == [0.0025]


def test_sessions_stay_open_while_rules_change(loaded):
    parameters = replace(GIVEN, pin_task=False)
    made = core(loaded, FakePolicy(), parameters, RequestQueue())
    made.accept_requests()
    session, _ = made.open(ask(), 0)
    made.apply_parameters(replace(parameters, max_sessions=1, admission='auto'))
    assert list(made.sessions) == [session]
    assert made.sessions.rules.admission == 'auto'
    with pytest.raises(SessionRefused):
        made.open(ask(2), 0)


def test_a_server_without_a_policy_says_so():
    chunk = request_validation.not_ready_chunk(request(), UNCONFIGURED_TEXT)
    assert chunk.status == Status.DRAINING
    assert chunk.status_text == 'not ready: no policy is loaded; configure the node'
    assert request_validation.no_session_text('arm', 7) == "'arm' has no session of epoch 7"


def changed_to(path: str, root: str) -> ServerParameters:
    present = ServerParameters(policy_path='/models/v1', policy_root=root)
    wanted = replace(present, policy_path=path)
    check_policy_path_change(present, wanted)
    return wanted


def test_without_a_root_the_path_is_fixed_at_start():
    with pytest.raises(ParameterError, match=r"policy_path is fixed at start \('/models/v1'\)"):
        changed_to('/models/v2', '')
    assert changed_to('/models/v1', '')


@pytest.mark.parametrize('way', ['{root}/v2', '{root}/v2/../v3', '{root}', '{root}/v2?chunk=3'])
def test_below_the_root_the_path_may_change(way, tmp_path):
    assert changed_to(way.format(root=tmp_path), str(tmp_path))


@pytest.mark.parametrize(
    'way', ['/etc', '', 'v2', '{root}/..', '{root}/../other', '{root}2', '{root}/link/v2']
)
def test_no_way_leads_out_of_the_root(way, tmp_path):
    root = tmp_path / 'models'
    root.mkdir()
    (root / 'link').symlink_to(tmp_path)
    with pytest.raises(ParameterError, match='must be below policy_root'):
        changed_to(way.format(root=root), str(root))
