# SPDX-License-Identifier: Apache-2.0
"""What LeRobot's policies tell for the metrics: denoising steps, and whether a state was there."""

import pytest
from support.replacing import replace

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import loaded, requests_for
from support.policies.tiny_policies import SETTINGS

from lerobot_serve.policies.lerobot.description import denoise_steps
from lerobot_serve.policies.lerobot.policy_types import POLICY_TYPES


class Config:
    """A configuration of which these fields are set."""

    def __init__(self, **fields: int | None) -> None:
        self.__dict__ |= fields


@pytest.mark.parametrize(
    ('kind', 'steps'),
    [
        ('act', 0),
        ('vqbet', 0),
        ('tdmpc', 0),
        ('diffusion', SETTINGS['diffusion']['num_train_timesteps']),
        ('smolvla', SETTINGS['smolvla']['num_steps']),
    ],
)
def test_a_policy_tells_how_often_it_denoises(kind, steps):
    assert loaded(kind).describe().denoise_steps == steps


def test_fewer_steps_than_in_training_are_those_that_count():
    config = Config(num_inference_steps=10, num_train_timesteps=100)
    assert denoise_steps(POLICY_TYPES['diffusion'], config) == 10
    assert denoise_steps(POLICY_TYPES['diffusion'], Config(num_train_timesteps=100)) == 100


def test_only_a_state_that_was_there_was_found():
    policy = loaded('tdmpc')
    (begin,) = requests_for(policy, 1)
    on = replace(begin, episode_start=False)
    other = replace(on, session_id='another')
    told = [policy.predict([request])[0] for request in (begin, on, other)]
    assert [(one.state_found, one.state_lost) for one in told] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    act = loaded('act')
    (begin,) = requests_for(act, 1)
    for request in (begin, replace(begin, episode_start=False)):
        assert not act.predict([request])[0].state_found
