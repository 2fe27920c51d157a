# SPDX-License-Identifier: Apache-2.0
"""LeRobot's policy types, classified; neither torch nor LeRobot."""

import pytest

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.policy_types import (
    check_dtype,
    EXTERNAL_TYPE,
    policy_type_spec,
    POLICY_TYPES,
)


@pytest.mark.parametrize('policy_type', ['sac', 'reward_classifier', 'sarm', 'gaussian_actor'])
def test_types_without_chunks_are_refused(policy_type):
    text = f'{policy_type!r} cannot be served.*supported are act, '
    with pytest.raises(PolicyError, match=text):
        policy_type_spec(policy_type)


@pytest.mark.parametrize(
    ('state_class', 'types'),
    [
        (StateClass.CHUNK_STATELESS, {'act', 'smolvla', 'pi0', 'pi05'}),
        (StateClass.NEEDS_HISTORY, {'diffusion', 'vqbet'}),
        (StateClass.RECURRENT, {'tdmpc'}),
    ],
)
def test_types_are_classified(state_class, types):
    assert {
        name for name, kind in POLICY_TYPES.items() if kind.state_class is state_class
    } == types


def test_rtc_and_randomness_are_by_type():
    assert {name for name, kind in POLICY_TYPES.items() if kind.rtc} == {'smolvla', 'pi0', 'pi05'}
    assert {name for name, kind in POLICY_TYPES.items() if not kind.stochastic} == {'act'}


@pytest.mark.parametrize('policy_type', ['pi0_fast', 'groot', 'wall_x'])
def test_types_that_run_code_of_a_folder_are_refused(policy_type):
    with pytest.raises(
        PolicyError, match=f'{policy_type!r} cannot be served.*code from policy folders'
    ):
        policy_type_spec(policy_type, ('any_package',))


def test_an_unknown_type_serves_one_session_when_its_package_is_trusted():
    with pytest.raises(PolicyError, match=r"'unknown' is not supported.*trusted_packages"):
        policy_type_spec('unknown')
    assert policy_type_spec('unknown', ('a_package',)) is EXTERNAL_TYPE
    assert EXTERNAL_TYPE.state_class is StateClass.EXCLUSIVE
    assert EXTERNAL_TYPE.batch_limit == 1


@pytest.mark.parametrize(
    ('policy_type', 'dtype', 'fits'),
    [
        ('act', 'bfloat16', True),
        ('act', 'float16', True),
        ('pi0', 'float16', False),
        ('tdmpc', 'float32', True),
        ('tdmpc', 'bfloat16', False),
        ('act', 'int8', False),
        ('act', '', True),
    ],
)
def test_precisions_are_by_type(policy_type, dtype, fits):
    if fits:
        check_dtype(policy_type, POLICY_TYPES[policy_type], dtype)
        return
    with pytest.raises(PolicyError, match=f'cannot compute in dtype {dtype!r}'):
        check_dtype(policy_type, POLICY_TYPES[policy_type], dtype)
