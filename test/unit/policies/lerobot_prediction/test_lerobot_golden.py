# SPDX-License-Identifier: Apache-2.0
"""Each policy answers what LeRobot itself answers, bit for bit."""

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import folder_of, loaded, Oracle, requests_for  # noqa: E402
from support.policies.loading import loading_elsewhere  # noqa: E402

DRAWING = ('diffusion', 'vqbet', 'tdmpc', 'smolvla')
SELECTING = ('act', 'diffusion', 'vqbet', 'smolvla')
PREDICTING = ('act', 'smolvla')


def selected(oracle, request):
    """Return the chunk that LeRobot's control loop plays, one select_action a control step."""
    *past, present = oracle.batches(request)
    oracle.policy.reset()
    with torch.inference_mode():
        for batch in past:
            oracle.policy.select_action(dict(batch))
        actions = action_queue(oracle.policy)
        actions.clear()
        torch.manual_seed(request.seed)
        first = oracle.policy.select_action(dict(present))
        return torch.cat([first, *action_queue(oracle.policy)])


def action_queue(policy):
    return policy._action_queue if hasattr(policy, '_action_queue') else policy._queues['action']


def same(prediction, model, oracle):
    np.testing.assert_array_equal(prediction.model, model.numpy())
    np.testing.assert_array_equal(prediction.robot, oracle.row_by_row(model))


@pytest.mark.parametrize('kind', SELECTING)
def test_a_chunk_is_what_the_control_loop_plays(kind):
    policy, oracle = loaded(kind), Oracle(folder_of(kind))
    for request in requests_for(policy, 3):
        prediction = policy.predict([request])[0]
        assert prediction.model.shape == (policy.describe().chunk_size, 6)
        same(prediction, selected(oracle, request), oracle)


@pytest.mark.parametrize('kind', PREDICTING)
def test_a_chunk_is_what_predict_action_chunk_gives(kind):
    policy, oracle = loaded(kind), Oracle(folder_of(kind))
    request = requests_for(policy, 1)[0]
    prediction = policy.predict([request])[0]
    torch.manual_seed(request.seed)
    with torch.inference_mode():
        model = oracle.policy.predict_action_chunk(oracle.batches(request)[-1])
    same(prediction, model[0], oracle)


@pytest.mark.parametrize('kind', DRAWING)
def test_a_chunk_is_the_same_while_another_policy_is_loaded(kind):
    def build() -> None:
        torch.manual_seed(1)
        torch.nn.Linear(40, 40)

    policy = loaded(kind)
    assert policy.describe().stochastic
    requests = [replace(each, episode_start=True) for each in requests_for(policy, 3)]
    alone = [policy.predict([each])[0] for each in requests]
    with loading_elsewhere(build):
        beside = [policy.predict([each])[0] for each in requests]
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one.model, other.model)
        np.testing.assert_array_equal(one.robot, other.robot)


@pytest.mark.parametrize('use_mpc', [True, False])
def test_tdmpc_plans_on_from_its_last_plan(use_mpc):
    settings = {'n_action_repeats': 1, 'use_mpc': use_mpc}
    policy, oracle = (
        loaded('tdmpc', **settings),
        Oracle(folder_of('tdmpc', **settings)),
    )
    assert policy.describe().chunk_size == (5 if use_mpc else 1)
    steps = [
        replace(each, session_id='one', episode_start=not number)
        for number, each in enumerate(requests_for(policy, 4))
    ]
    firsts = []
    for request in steps:
        batch = oracle.batches(request)[-1]
        torch.manual_seed(request.seed)
        with torch.inference_mode():
            first = oracle.policy.select_action(dict(batch))
        prediction = policy.predict([request])[0]
        np.testing.assert_array_equal(prediction.model[0], first[0].numpy())
        np.testing.assert_array_equal(prediction.robot[0], oracle.row_by_row(first)[0])
        firsts.append(prediction)
    assert not any(each.state_lost for each in firsts)
    if use_mpc:
        # the same last observation without the plans before it gives another plan
        anew = policy.predict([replace(steps[-1], session_id='other', episode_start=True)])[0]
        assert not np.array_equal(anew.model, firsts[-1].model)


def guided(oracle, request, **told):
    """Return LeRobot's chunk with RTC on."""
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    oracle.policy.config.rtc_config = RTCConfig(enabled=True)
    oracle.policy.init_rtc_processor()
    torch.manual_seed(request.seed)
    with torch.no_grad():
        return oracle.policy.predict_action_chunk(oracle.batches(request)[-1], **told)[0]


@pytest.mark.parametrize(
    ('delay', 'horizon', 'rows'), [(0, 0, 5), (3, 8, 12), (4, 10, 16), (2, 6, 30)]
)
def test_smolvla_is_guided_by_its_prefix(delay, horizon, rows):
    policy, oracle = loaded('smolvla'), Oracle(folder_of('smolvla'))
    assert policy.describe().supports_rtc
    plain = requests_for(policy, 1)[0]
    prefix = np.random.default_rng(7).normal(size=(rows, 6)).astype(np.float32)
    request = replace(
        plain, prefix_model=prefix, inference_delay_steps=delay, execution_horizon=horizon
    )
    prediction = policy.predict([request])[0]
    model = guided(
        oracle,
        request,
        inference_delay=delay,
        execution_horizon=horizon or None,
        # a longer prefix than the chunk is an error in LeRobot; here it is cut
        prev_chunk_left_over=torch.from_numpy(prefix[:16]).unsqueeze(0),
    )
    same(prediction, model, oracle)
    unguided = policy.predict([plain])[0]
    assert not np.array_equal(prediction.model, unguided.model)


def test_an_empty_prefix_does_not_guide():
    policy, oracle = loaded('smolvla'), Oracle(folder_of('smolvla'))
    request = requests_for(policy, 1)[0]
    empty = replace(request, prefix_model=np.zeros((0, 6), np.float32), inference_delay_steps=4)
    torch.manual_seed(request.seed)
    with torch.inference_mode():
        model = oracle.policy.predict_action_chunk(oracle.batches(request)[-1])[0]
    same(policy.predict([empty])[0], model, oracle)
