# SPDX-License-Identifier: Apache-2.0
"""The LeRobot policy types that are served, and how. Plain data, any thread."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import PolicyError


@dataclass(frozen=True, slots=True)
class PolicyTypeSpec:
    """
    Properties of a policy type.

    `resizes`: the network scales images itself, so frames may have any size. `batch_limit` is 1 if
    batches may differ from single requests. `steps` are the configuration fields with the number
    of denoising steps; the first that is set counts. `dtypes` are the supported precisions beside
    its own. `image_encoder` is the module of the network whose `embed_image` depends on
    nothing but its images.
    """

    state_class: StateClass
    stochastic: bool = True
    rtc: bool = False
    resizes: bool = False
    batch_limit: int = 0
    steps: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    image_encoder: str = ''


STATELESS = StateClass.CHUNK_STATELESS
FLOAT32_ONLY, FLOAT32_OR_BFLOAT16 = ('float32',), ('float32', 'bfloat16')
ANY_PRECISION = (*FLOAT32_OR_BFLOAT16, 'float16')
PI = PolicyTypeSpec(
    STATELESS,
    rtc=True,
    resizes=True,
    steps=('num_inference_steps',),
    dtypes=FLOAT32_OR_BFLOAT16,
    image_encoder='model.paligemma_with_expert',
)
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
        STATELESS,
        rtc=True,
        resizes=True,
        steps=('num_steps',),
        dtypes=ANY_PRECISION,
        image_encoder='model.vlm_with_expert',
    ),
    'pi0': PI,
    'pi05': PI,
}
NEEDS_CODE = (
    'LeRobot loads it with Python from its folder, and code from policy folders is not loaded'
)
REFUSED_TYPES = {
    'sac': 'it returns single actions, not chunks',
    'reward_classifier': 'it classifies images and returns no actions',
    'sarm': 'it rates episodes and returns no actions',
    'pi0_fast': f'{NEEDS_CODE} (its action tokenizer)',
    'groot': f'{NEEDS_CODE} (its model and its processor)',
    'wall_x': f'{NEEDS_CODE} (its action tokenizer)',
    'xvla': 'its settings do not bound the size of its network',
    # LeRobot 0.6 and later
    'gaussian_actor': 'it returns single actions, not chunks',
    **dict.fromkeys(
        ('eo1', 'evo1', 'fastwam', 'lingbot_va', 'molmoact2', 'multi_task_dit', 'vla_jepa'),
        'LeRobot builds it around models of others, whose files are not checked here',
    ),
}
# types of other packages: their state is unknown, so they serve one session
EXTERNAL_TYPE = PolicyTypeSpec(StateClass.EXCLUSIVE, batch_limit=1)


def policy_type_spec(policy_type: str, trusted_packages: tuple[str, ...] = ()) -> PolicyTypeSpec:
    """Return the properties of a type. Raises PolicyError for an unsupported one."""
    check_not_refused(policy_type)
    if policy_type in POLICY_TYPES:
        return POLICY_TYPES[policy_type]
    if not trusted_packages:
        raise PolicyError(
            f'a policy of the type {policy_type!r:.80} is not supported: loading an unknown type '
            f'may run any code; supported are {served_types()}'
        )
    return EXTERNAL_TYPE


def check_not_refused(policy_type: str) -> None:
    """Raise PolicyError for a type of LeRobot that is never served."""
    if policy_type in REFUSED_TYPES:
        raise PolicyError(
            f'a policy of the type {policy_type!r} cannot be served: '
            f'{REFUSED_TYPES[policy_type]}; supported are {served_types()}'
        )


def check_dtype(policy_type: str, kind: PolicyTypeSpec, dtype: str) -> None:
    """Raise PolicyError for a precision that a type cannot compute in."""
    if dtype and dtype not in kind.dtypes:
        raise PolicyError(
            f'a {policy_type} policy cannot compute in dtype {dtype!r}; leave it empty for its '
            f'own{", or use " + " or ".join(kind.dtypes) if kind.dtypes else ""}'
        )


def served_types() -> str:
    """Return the supported types as text."""
    return (
        f'{", ".join(POLICY_TYPES)}, and types of installed packages that trusted_packages names'
    )
