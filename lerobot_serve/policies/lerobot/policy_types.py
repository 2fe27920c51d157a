# SPDX-License-Identifier: Apache-2.0
"""The LeRobot policy types that are served, and how. Plain data, any thread."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.wire.schema import StateClass


@dataclass(frozen=True, slots=True)
class PolicyTypeSpec:
    """
    How a policy type is served.

    `resizes`: its network scales images itself, so frames of any size may come. A `batch_limit` of
    1 is for those whose batches were not seen to equal single requests. `steps` are the fields of
    its configuration that hold how often it denoises a chunk; the first that is set counts.
    `dtypes` are the precisions it can compute in beside its own.
    """

    state_class: StateClass
    stochastic: bool = True
    rtc: bool = False
    resizes: bool = False
    batch_limit: int = 0
    steps: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


STATELESS = StateClass.CHUNK_STATELESS
FLOAT32_ONLY, FLOAT32_OR_BFLOAT16 = ('float32',), ('float32', 'bfloat16')
ANY_PRECISION = (*FLOAT32_OR_BFLOAT16, 'float16')
POLICY_TYPES = {
    'act': PolicyTypeSpec(STATELESS, stochastic=False, dtypes=ANY_PRECISION),
    'diffusion': PolicyTypeSpec(
        StateClass.NEEDS_HISTORY,
        steps=('num_inference_steps', 'num_train_timesteps'),
        dtypes=ANY_PRECISION,
    ),
    'vqbet': PolicyTypeSpec(StateClass.NEEDS_HISTORY, dtypes=FLOAT32_ONLY),
    'tdmpc': PolicyTypeSpec(StateClass.RECURRENT, batch_limit=1, dtypes=FLOAT32_ONLY),
    'smolvla': PolicyTypeSpec(
        STATELESS, rtc=True, resizes=True, steps=('num_steps',), dtypes=ANY_PRECISION
    ),
    'pi0': PolicyTypeSpec(
        STATELESS,
        rtc=True,
        resizes=True,
        steps=('num_inference_steps',),
        dtypes=FLOAT32_OR_BFLOAT16,
    ),
    'pi05': PolicyTypeSpec(
        STATELESS,
        rtc=True,
        resizes=True,
        steps=('num_inference_steps',),
        dtypes=FLOAT32_OR_BFLOAT16,
    ),
}
NEEDS_CODE = (
    'LeRobot runs Python from a folder to load it, and code from policy folders is not loaded'
)
REFUSED_TYPES = {
    'sac': 'it chooses one action at a time and has no chunk',
    'reward_classifier': 'it judges images and gives no actions',
    'sarm': 'it judges episodes and gives no actions',
    'pi0_fast': f'{NEEDS_CODE} (its action tokenizer)',
    'groot': f'{NEEDS_CODE} (its model and its processor)',
    'wall_x': f'{NEEDS_CODE} (its action tokenizer)',
    'xvla': 'the size of its network is in settings of no fixed form, so it has no bound',
}
# type of another package: its state is unknown, so it serves one session
EXTERNAL_TYPE = PolicyTypeSpec(StateClass.EXCLUSIVE, batch_limit=1)


def policy_type_spec(policy_type: str, trusted_packages: tuple[str, ...] = ()) -> PolicyTypeSpec:
    """Return how a type is served. Raises PolicyError for an unsupported one."""
    if policy_type in REFUSED_TYPES:
        raise PolicyError(
            f'a policy of the type {policy_type!r} cannot be served: '
            f'{REFUSED_TYPES[policy_type]}; served are {served_types()}'
        )
    if policy_type in POLICY_TYPES:
        return POLICY_TYPES[policy_type]
    if not trusted_packages:
        raise PolicyError(
            f'a policy of the type {policy_type!r:.80} is not served: loading one of an unknown '
            f'type may run anything; served are {served_types()}'
        )
    return EXTERNAL_TYPE


def check_dtype(policy_type: str, kind: PolicyTypeSpec, dtype: str) -> None:
    """Raise PolicyError for a precision that a type cannot compute in."""
    if dtype and dtype not in kind.dtypes:
        raise PolicyError(
            f'a {policy_type} policy cannot compute in dtype {dtype!r}; leave it empty for its '
            f'own{", or give " + " or ".join(kind.dtypes) if kind.dtypes else ""}'
        )


def served_types() -> str:
    """Return the served types, as a sentence may list them."""
    return (
        f'{", ".join(POLICY_TYPES)}, and types of installed packages that trusted_packages names'
    )
