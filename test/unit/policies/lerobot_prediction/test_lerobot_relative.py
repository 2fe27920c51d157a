# SPDX-License-Identifier: Apache-2.0
"""Relative actions with real-time chunking: a prefix is carried over to the present state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import folder_of, loading, Oracle, requests_for  # noqa: E402
from support.policies.relative_rig import ACTION, reanchored, relative_folder, Steps  # noqa: E402

from lerobot_serve.policies.lerobot.loader import load  # noqa: E402

ROWS, DELAY, HORIZON = 9, 3, 8
EXCLUDED = ('joint_5',)


@Steps.register('test_doubled_action')
class Doubled(Steps.base):
    """Does to actions what the way in does not undo."""

    def __call__(self, transition):
        return transition | {ACTION: 2 * transition[ACTION]}

    def transform_features(self, features):
        return features


def prefixed(request, rows: np.ndarray, **changes):
    """Return a request with a prefix, whose rows in model space are of no use."""
    prefix = {'prefix_robot': rows, 'prefix_model': np.full_like(rows, 7.0)}
    return replace(
        request, inference_delay_steps=DELAY, execution_horizon=HORIZON, **(prefix | changes)
    )


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, 6)).astype(np.float32)


@pytest.mark.parametrize('excluded', [(), EXCLUDED])
def test_a_prefix_guides_as_lerobots_loop_guides_with_it(excluded):
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    folder = relative_folder(exclude=excluded)
    policy, oracle = load(loading(folder)), Oracle(folder)
    assert policy.describe().supports_rtc
    oracle.policy.config.rtc_config = RTCConfig(enabled=True)
    oracle.policy.init_rtc_processor()
    for number, request in enumerate(requests_for(policy, 3)):
        rows = drawn(number)
        batch = oracle.batches(request)[-1]
        prefix = reanchored(oracle.pre, torch.from_numpy(rows), excluded).unsqueeze(0)
        torch.manual_seed(request.seed)
        with torch.no_grad():
            model = oracle.policy.predict_action_chunk(
                batch,
                inference_delay=DELAY,
                execution_horizon=HORIZON,
                prev_chunk_left_over=prefix,
            )[0]
            robot = oracle.post(model.unsqueeze(0))[0].numpy()
        guided = policy.predict([prefixed(request, rows)])[0]
        assert guided.model.tobytes() == model.numpy().tobytes()
        assert guided.robot.tobytes() == robot.tobytes()
        unguided = policy.predict([replace(request, session_id='another')])[0]
        assert not np.array_equal(guided.model, unguided.model)


def test_rows_in_model_space_do_not_guide_relative_actions():
    policy = load(loading(relative_folder()))
    request, rows = requests_for(policy, 1)[0], drawn(1)
    first, second = (
        policy.predict([prefixed(request, rows, prefix_model=np.full((ROWS, 6), value))])[0]
        for value in (0.0, 5.0)
    )
    assert first.model.tobytes() == second.model.tobytes()
    none = policy.predict([prefixed(request, rows[:0], prefix_model=rows)])[0]
    assert none.model.tobytes() == policy.predict([request])[0].model.tobytes()


@pytest.mark.parametrize('excluded', [(), EXCLUDED])
def test_what_is_left_stays_where_the_robot_would_have_gone(excluded):
    """The prefix of a second request, read as actions at its state, is that of the first."""
    policy = load(loading(relative_folder(exclude=excluded)))
    first, second = requests_for(policy, 2)
    chunk = policy.predict([first])[0]
    pair = policy._prepare(second).memory.pair
    prefix = pair.reanchorer.reanchor_prefix(torch.from_numpy(chunk.robot))
    again = pair.postprocess(prefix.unsqueeze(0), whole=True)[0].numpy()
    np.testing.assert_allclose(again, chunk.robot, atol=1e-5)
    assert not np.allclose(prefix.numpy(), chunk.model, atol=1e-2)


def test_eight_sessions_are_each_anchored_at_their_own_state():
    folder = relative_folder()
    shared, single = load(loading(folder)), load(loading(folder))
    for turn in range(2):
        asked = [
            prefixed(request, drawn(turn + number), episode_start=not turn)
            for number, request in enumerate(requests_for(shared, 8, seed=turn))
        ]
        for request in asked:
            alone = single.predict([replace(request, session_id='alone', episode_start=True)])[0]
            assert shared.predict([request])[0].model.tobytes() == alone.model.tobytes()


def test_steps_that_a_prefix_cannot_be_carried_through_turn_it_off():
    folder = relative_folder(after='test_doubled_action')
    policy = load(loading(folder, trusted_packages=(__name__.partition('.')[0],)))
    described = policy.describe()
    assert not described.supports_rtc
    assert any('real-time chunking is off' in note for note in described.notes)
    request = requests_for(policy, 1)[0]
    guided = policy.predict([prefixed(request, drawn(1))])[0]
    assert guided.model.tobytes() == policy.predict([request])[0].model.tobytes()


def test_absolute_actions_are_guided_in_model_space_as_before():
    policy = load(loading(folder_of('smolvla')))
    request, rows = requests_for(policy, 1)[0], drawn(1)
    first, second = (
        policy.predict([prefixed(request, value * rows, prefix_model=rows)])[0] for value in (1, 2)
    )
    assert first.model.tobytes() == second.model.tobytes()
