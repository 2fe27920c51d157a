"""Which of LeRobot's policy types are served, and how; plain data, any thread."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.wire.schema import StateClass


@dataclass(frozen=True, slots=True)
class Kind:
    """
    How one type of policy is served.

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
FULL, CONFIGURED = ('float32',), ('float32', 'bfloat16')
ANY = (*CONFIGURED, 'float16')
KINDS = {
    'act': Kind(STATELESS, stochastic=False, dtypes=ANY),
    'diffusion': Kind(
        StateClass.NEEDS_HISTORY,
        steps=('num_inference_steps', 'num_train_timesteps'),
        dtypes=ANY,
    ),
    'vqbet': Kind(StateClass.NEEDS_HISTORY, dtypes=FULL),
    'tdmpc': Kind(StateClass.RECURRENT, batch_limit=1, dtypes=FULL),
    'smolvla': Kind(STATELESS, rtc=True, resizes=True, steps=('num_steps',), dtypes=ANY),
    'pi0': Kind(
        STATELESS, rtc=True, resizes=True, steps=('num_inference_steps',), dtypes=CONFIGURED
    ),
    'pi05': Kind(
        STATELESS, rtc=True, resizes=True, steps=('num_inference_steps',), dtypes=CONFIGURED
    ),
}
CODE = 'LeRobot runs Python from a folder to load it, and a policy brings no code'
REFUSED = {
    'sac': 'it chooses one action at a time and has no chunk',
    'reward_classifier': 'it judges images and gives no actions',
    'sarm': 'it judges episodes and gives no actions',
    'pi0_fast': f'{CODE} (its action tokenizer)',
    'groot': f'{CODE} (its model and its processor)',
    'wall_x': f'{CODE} (its action tokenizer)',
    'xvla': 'the size of its network is in settings of no fixed form, so it has no bound',
}
# of another package: nobody knows what it remembers, so it serves one session
FOREIGN = Kind(StateClass.EXCLUSIVE, batch_limit=1)


def kind_of(policy_type: str, trusted_packages: tuple[str, ...] = ()) -> Kind:
    """Return how a type is served. Raises PolicyError for one that is not."""
    if policy_type in REFUSED:
        raise PolicyError(
            f'a policy of the type {policy_type!r} cannot be served: {REFUSED[policy_type]}; '
            f'served are {served()}'
        )
    if policy_type in KINDS:
        return KINDS[policy_type]
    if not trusted_packages:
        raise PolicyError(
            f'a policy of the type {policy_type!r:.80} is not served: loading one of an unknown '
            f'type may run anything; served are {served()}'
        )
    return FOREIGN


def check_dtype(policy_type: str, kind: Kind, dtype: str) -> None:
    """Raise PolicyError for a precision that a type cannot compute in."""
    if dtype and dtype not in kind.dtypes:
        raise PolicyError(
            f'a {policy_type} policy cannot compute in dtype {dtype!r}; leave it empty for its '
            f'own{", or give " + " or ".join(kind.dtypes) if kind.dtypes else ""}'
        )


def served() -> str:
    """Return the served types, as a sentence may list them."""
    return f'{", ".join(KINDS)}, and types of installed packages that trusted_packages names'
