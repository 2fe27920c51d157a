# SPDX-License-Identifier: Apache-2.0
"""Requests predicted together answer as each alone, whatever their order, seeds and prefixes."""

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import KINDS, loaded, requests_for  # noqa: E402

from lerobot_serve.policies.base import PolicyError  # noqa: E402

pytestmark = pytest.mark.slow

TOGETHER = tuple(kind for kind in KINDS if kind != 'tdmpc')
CLOSE = {'rtol': 0, 'atol': 1e-5}


def alone(policy, requests):
    return [policy.predict([request])[0] for request in requests]


def alike(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one.model, other.model, **CLOSE)
        np.testing.assert_allclose(one.robot, other.robot, **CLOSE)


def forwards(policy, monkeypatch):
    """Return a list that grows by the size of each batch that reaches the network."""
    sizes, predict = [], policy.network.predict_action_chunk

    def counted(batch, **told):
        sizes.append(len(batch['observation.state']))
        return predict(batch, **told)

    monkeypatch.setattr(policy.network, 'predict_action_chunk', counted)
    return sizes


@pytest.mark.parametrize('kind', TOGETHER)
def test_a_batch_is_one_forward_pass_and_answers_as_each_alone(kind, monkeypatch):
    policy = loaded(kind)
    requests = requests_for(policy, 3)
    expected = alone(policy, requests)
    sizes = forwards(policy, monkeypatch)
    alike(policy.predict(requests), expected)
    alike(policy.predict(requests[::-1]), expected[::-1])
    assert sizes == [3, 3]


@pytest.mark.parametrize('kind', [kind for kind in TOGETHER if kind != 'act'])
def test_the_seed_decides(kind):
    policy = loaded(kind)
    request = requests_for(policy, 1)[0]
    same = [replace(request, session_id=str(number)) for number in range(2)]
    # among the few codes of a tiny VQ-BeT, two seeds may choose alike
    others = [replace(request, seed=seed) for seed in range(20, 26)]
    first, second = policy.predict(same)
    np.testing.assert_allclose(first.model, second.model, **CLOSE)
    assert any(not np.allclose(each.model, first.model) for each in alone(policy, others))
    assert policy.describe().stochastic


def test_a_seed_means_nothing_to_act():
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    one, other = alone(policy, [request, replace(request, seed=99)])
    np.testing.assert_array_equal(one.model, other.model)
    assert not policy.describe().stochastic


def test_tdmpc_plans_for_each_alone(monkeypatch):
    policy = loaded('tdmpc')
    requests = requests_for(policy, 3)
    expected = alone(policy, requests)
    sizes = forwards(policy, monkeypatch)
    for one, other in zip(policy.predict(requests), expected, strict=True):
        np.testing.assert_array_equal(one.model, other.model)
    assert sizes == [1, 1, 1]
    assert policy.describe().batch_limit == 1


def test_each_request_is_guided_by_its_own_prefix_and_delay(monkeypatch):
    policy = loaded('smolvla')
    draw = np.random.default_rng(3)
    # delay, rows, horizon: the first two fit together, the two without a prefix as well
    told = [(2, 8, 6), (2, 8, 6), (3, 8, 6), (2, 9, 6), (2, 8, 7), (1, 0, 6), (5, 0, 0)]
    requests = [
        replace(
            request,
            inference_delay_steps=delay,
            execution_horizon=horizon,
            prefix_model=draw.normal(size=(rows, 6)).astype(np.float32),
        )
        for request, (delay, rows, horizon) in zip(
            requests_for(policy, len(told)), told, strict=True
        )
    ]
    expected = alone(policy, requests)
    sizes = forwards(policy, monkeypatch)
    alike(policy.predict(requests), expected)
    assert sizes == [2, 1, 1, 1, 2]


def test_tasks_of_different_length_are_not_mixed_up(monkeypatch):
    policy = loaded('smolvla')
    requests = [
        replace(request, task=task)
        for request, task in zip(requests_for(policy, 3), ['a', 'pick', 'b'], strict=True)
    ]
    expected = alone(policy, requests)
    sizes = forwards(policy, monkeypatch)
    alike(policy.predict(requests), expected)
    assert sizes == [2, 1]
    assert not np.allclose(
        expected[0].model, policy.predict([replace(requests[0], task='b')])[0].model
    )


def test_a_policy_without_rtc_does_not_look_at_prefixes(monkeypatch):
    policy = loaded('act')
    requests = requests_for(policy, 3)
    expected = alone(policy, requests)
    told = [
        replace(request, prefix_model=np.ones((number, 6), np.float32))
        for number, request in enumerate(requests)
    ]
    sizes = forwards(policy, monkeypatch)
    alike(policy.predict(told), expected)
    assert sizes == [3]


def test_no_request_is_no_work():
    assert loaded('act').predict([]) == []


def test_a_prefix_of_other_actions_is_refused():
    policy = loaded('smolvla')
    request = replace(requests_for(policy, 1)[0], prefix_model=np.zeros((3, 5), np.float32))
    with pytest.raises(PolicyError, match=r'must be rows x 6 actions, got \(3, 5\)'):
        policy.predict([request])


def test_the_forward_pass_is_timed():
    policy = loaded('act')
    first, second = policy.predict(requests_for(policy, 2))
    assert first.forward_ms == second.forward_ms > 0
