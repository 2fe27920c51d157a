# SPDX-License-Identifier: Apache-2.0
"""
Real-time chunking that a policy was trained for (LeRobot after 0.6.1, Pi0.5): the mode is passed
on, and a delay above that of the training is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import loaded, requests_for  # noqa: E402

from lerobot_serve.policies.base import PolicyError  # noqa: E402
from lerobot_serve.policies.lerobot import loader  # noqa: E402
from lerobot_serve.policies.lerobot.description import max_delay_steps  # noqa: E402
from lerobot_serve.policies.lerobot.prediction.network_inference import make_guidance  # noqa: E402
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy  # noqa: E402

CPU = torch.device('cpu')


@dataclass
class LaterRtc:
    """The settings of the release that has the mode."""

    enabled: bool = True
    mode: str = 'guided'


@dataclass
class OwnRtc:
    """The settings of the pinned releases."""

    enabled: bool = True


def trained_for(steps):
    """Return a policy that says it was trained for such delays, and a request with a prefix."""
    policy = loaded('smolvla')
    described = replace(policy.describe(), max_delay_steps=steps)
    trained = LeRobotPolicy(
        policy.network, policy.processors, described, resizes=True, state_limit=4
    )
    prefix = np.zeros((8, 6), np.float32)
    return trained, replace(requests_for(policy, 1)[0], prefix_model=prefix)


@pytest.mark.parametrize(('delay', 'rows', 'used'), [(0, 8, 0), (4, 8, 4), (4, 2, 2), (1, 1, 1)])
def test_as_many_rows_are_kept_as_the_delay_has_and_the_prefix_holds(delay, rows, used):
    policy, request = trained_for(4)
    asked = replace(request, inference_delay_steps=delay, prefix_model=request.prefix_model[:rows])
    guidance = make_guidance(asked, policy.describe(), CPU)
    assert (guidance.delay_steps, len(guidance.prefix)) == (used, rows)


def test_a_delay_above_that_of_the_training_is_refused():
    policy, request = trained_for(4)
    with pytest.raises(PolicyError, match=r'is 5 steps, but the policy was trained for at most 4'):
        policy.predict([replace(request, inference_delay_steps=5)])
    # without a prefix there is nothing to keep
    without = replace(request, prefix_model=request.prefix_model[:0], inference_delay_steps=5)
    assert np.isfinite(policy.predict([without])[0].model).all()


def test_guided_policies_have_no_such_limit():
    policy, request = trained_for(0)
    asked = replace(request, inference_delay_steps=500, prefix_model=request.prefix_model[:2])
    assert make_guidance(asked, policy.describe(), CPU).delay_steps == 500


@pytest.mark.parametrize(
    ('rtc', 'trained', 'mode'),
    [(LaterRtc, 0, 'guided'), (LaterRtc, 6, 'trained'), (OwnRtc, 6, None)],
)
def test_a_policy_that_was_trained_for_it_uses_it(monkeypatch, rtc, trained, mode):
    monkeypatch.setattr(loader, 'lerobot', lambda: SimpleNamespace(rtc_config=rtc))
    chosen = loader._default_rtc(SimpleNamespace(rtc_training_max_delay=trained))
    assert getattr(chosen, 'mode', None) == mode


@pytest.mark.parametrize(
    ('config', 'steps'),
    [
        ({}, 0),
        ({'rtc_config': None, 'rtc_training_max_delay': 6}, 0),
        ({'rtc_config': LaterRtc(mode='guided'), 'rtc_training_max_delay': 6}, 0),
        ({'rtc_config': LaterRtc(mode='trained'), 'rtc_training_max_delay': 6}, 6),
    ],
)
def test_the_limit_is_that_of_the_checkpoint(config, steps):
    assert max_delay_steps(SimpleNamespace(**config)) == steps
