# SPDX-License-Identifier: Apache-2.0
"""The prefix of a chunk that is being played: only for the policy that it came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.server.worker_rig import ASK, bench, OBSERVATION, PREFIX, SESSION

from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag, Status

FINGERPRINT = 'fake@0123456789abcdef'


def prefixed(policy: str, **changes: object) -> Observation:
    content = {'prefix_model': PREFIX, 'prefix_robot': 2 * PREFIX, 'inference_delay_steps': 1}
    return replace(OBSERVATION, prefix_policy=policy, **{**content, **changes})


def test_a_prefix_of_the_same_policy_is_passed_on():
    made = bench(supports_rtc=True)
    chunk = made.answer(prefixed(FINGERPRINT))
    (request,) = made.policy.calls
    assert chunk.header.flags == Flag.NONE
    assert np.array_equal(request.prefix_model, PREFIX)
    assert np.array_equal(request.prefix_robot, 2 * PREFIX)
    assert request.inference_delay_steps == 1


@pytest.mark.parametrize(
    ('policy', 'supports_rtc', 'changes'),
    [
        ('other@00', True, {}),
        ('', True, {}),
        ('fake', True, {}),
        (FINGERPRINT, False, {}),
        ('other@00', True, {'prefix_model': PREFIX[:0]}),
        ('other@00', True, {'prefix_robot': PREFIX[:0], 'prefix_model': np.nan * PREFIX}),
    ],
)
def test_a_prefix_never_crosses_policies_and_the_client_is_told(policy, supports_rtc, changes):
    made = bench(supports_rtc=supports_rtc)
    chunk = made.answer(prefixed(policy, **changes))
    (request,) = made.policy.calls
    assert (chunk.status, chunk.header.flags) == (Status.OK, Flag.PREFIX_IGNORED)
    assert not request.prefix_model.size
    assert not request.prefix_robot.size
    assert request.inference_delay_steps == 0


@pytest.mark.parametrize('which', ['prefix_model', 'prefix_robot'])
@pytest.mark.parametrize(
    ('prefix', 'reason', 'words'),
    [
        (PREFIX[:, :2], 'wrong_shape', 'must have 3 columns, got 2'),
        (np.nan * PREFIX, 'not_finite', 'NaN'),
        (PREFIX + np.inf, 'not_finite', 'infinity'),
        (np.zeros((5, 3), np.float32), 'wrong_shape', 'may have 4 rows, got 5'),
    ],
)
def test_a_broken_prefix_of_the_same_policy_is_refused(which, prefix, reason, words):
    made = bench(supports_rtc=True)
    chunk = made.answer(prefixed(FINGERPRINT, **{which: prefix}))
    assert chunk.status == Status.BAD_OBSERVATION
    assert words in chunk.status_text
    assert made.statistics.drop_counts() == {reason: 1}
    assert not made.policy.calls


def test_a_prefix_may_be_as_long_as_a_chunk():
    rows = np.zeros((4, 3), np.float32)
    chunk = bench(supports_rtc=True).answer(prefixed(FINGERPRINT, prefix_model=rows))
    assert chunk.status == Status.OK


@pytest.mark.parametrize(('told', 'passed_on'), [(0, 0), (1, 1), (2, 2), (3, 2), (2**32 - 1, 2)])
def test_nobody_has_lived_more_of_a_prefix_than_there_is(told, passed_on):
    made = bench(supports_rtc=True)
    made.answer(prefixed(FINGERPRINT, inference_delay_steps=told))
    assert made.policy.calls[0].inference_delay_steps == passed_on


@pytest.mark.parametrize(('asked', 'passed_on'), [(0, 0), (3, 3), (4, 4), (100, 4)])
def test_a_horizon_is_no_longer_than_a_chunk(asked, passed_on):
    made = bench(supports_rtc=True)
    made.answer(OBSERVATION, replace(SESSION, request=replace(ASK, rtc_execution_horizon=asked)))
    assert made.policy.calls[0].execution_horizon == passed_on
