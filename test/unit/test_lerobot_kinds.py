"""LeRobot's policy types, classified; neither torch nor LeRobot."""

import pytest

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.kinds import FOREIGN, kind_of, KINDS
from lerobot_serve.wire.schema import StateClass


@pytest.mark.parametrize('policy_type', ['sac', 'reward_classifier', 'sarm'])
def test_types_without_chunks_are_refused(policy_type):
    with pytest.raises(PolicyError, match=f'{policy_type!r} cannot be served.*served are act, '):
        kind_of(policy_type)


@pytest.mark.parametrize(
    ('state_class', 'types'),
    [
        (
            StateClass.CHUNK_STATELESS,
            {'act', 'smolvla', 'pi0', 'pi05', 'pi0_fast', 'groot', 'xvla', 'wall_x'},
        ),
        (StateClass.NEEDS_HISTORY, {'diffusion', 'vqbet'}),
        (StateClass.RECURRENT, {'tdmpc'}),
    ],
)
def test_types_are_classified(state_class, types):
    assert {name for name, kind in KINDS.items() if kind.state_class is state_class} == types


def test_rtc_and_randomness_are_by_type():
    assert {name for name, kind in KINDS.items() if kind.rtc} == {'smolvla', 'pi0', 'pi05'}
    assert {name for name, kind in KINDS.items() if not kind.stochastic} == {'act'}


def test_an_unknown_type_serves_one_session():
    assert kind_of('somebodys') is FOREIGN
    assert FOREIGN.state_class is StateClass.EXCLUSIVE
    assert FOREIGN.batch_limit == 1
