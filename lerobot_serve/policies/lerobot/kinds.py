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
    """

    state_class: StateClass
    stochastic: bool = True
    rtc: bool = False
    resizes: bool = False
    batch_limit: int = 0
    steps: tuple[str, ...] = ()


STATELESS = StateClass.CHUNK_STATELESS
KINDS = {
    'act': Kind(STATELESS, stochastic=False),
    'diffusion': Kind(
        StateClass.NEEDS_HISTORY, steps=('num_inference_steps', 'num_train_timesteps')
    ),
    'vqbet': Kind(StateClass.NEEDS_HISTORY),
    'tdmpc': Kind(StateClass.RECURRENT, batch_limit=1),
    'smolvla': Kind(STATELESS, rtc=True, resizes=True, steps=('num_steps',)),
    'pi0': Kind(STATELESS, rtc=True, resizes=True, steps=('num_inference_steps',)),
    'pi05': Kind(STATELESS, rtc=True, resizes=True, steps=('num_inference_steps',)),
    'pi0_fast': Kind(STATELESS, resizes=True, batch_limit=1),
    'groot': Kind(STATELESS, resizes=True, batch_limit=1),
    'xvla': Kind(STATELESS, resizes=True, batch_limit=1, steps=('num_denoising_steps',)),
    'wall_x': Kind(STATELESS, resizes=True, batch_limit=1),
}
REFUSED = {
    'sac': 'it chooses one action at a time and has no chunk',
    'reward_classifier': 'it judges images and gives no actions',
    'sarm': 'it judges episodes and gives no actions',
}
# of another package: nobody knows what it remembers, so it serves one session
FOREIGN = Kind(StateClass.EXCLUSIVE, batch_limit=1)


def kind_of(policy_type: str) -> Kind:
    """Return how a type is served. Raises PolicyError for one that never is."""
    if policy_type in REFUSED:
        raise PolicyError(
            f'a policy of the type {policy_type!r} cannot be served: {REFUSED[policy_type]}; '
            f'served are {served()}'
        )
    return KINDS.get(policy_type, FOREIGN)


def served() -> str:
    """Return the served types, as a sentence may list them."""
    return f'{", ".join(KINDS)}, and types of installed packages that predict chunks'
