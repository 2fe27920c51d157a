# SPDX-License-Identifier: Apache-2.0
"""Describe a policy from its files, its configuration and the load options. Any thread."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.files.policy_folder import fingerprint
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import Checkpoint, hub_origin, policy_id
from lerobot_serve.policies.lerobot.checkpoint.config_rules import GUIDED, TRAINED
from lerobot_serve.policies.lerobot.policy_types import EXTERNAL_TYPE, POLICY_TYPES, PolicyTypeSpec

RTC_OFF_NOTE = (
    'actions are relative to the state, by steps that cannot convert a prefix: '
    'real-time chunking is off'
)
NO_CACHE_NOTE = (
    'embedding_cache_mb has no effect: the network is compiled (compile_model), and a compiled '
    'network cannot leave out its vision encoder'
)


def describe_policy(
    folder: Checkpoint,
    options: LoadOptions,
    features: PolicyDescription,
    kind: PolicyTypeSpec,
    config: Any,
    *,
    relative: bool,
    notes: tuple[str, ...],
) -> PolicyDescription:
    """
    Return the description without the chunk size, which a first prediction determines; `features`
    has the inputs and outputs.

    `relative`: actions are relative to a state, and their prefix cannot be converted to another
    state. `notes` precede those of the configuration. Raises PolicyError.
    """
    steps, stride = _history(config) if kind.state_class is StateClass.NEEDS_HISTORY else (1, 1)
    rtc = kind.rtc and getattr(config, 'rtc_config', None) is not None
    cache_bytes = options.embedding_cache_bytes if kind.image_encoder else 0
    if cache_bytes and config.compile_model:
        cache_bytes, notes = 0, (*notes, NO_CACHE_NOTE)
    return replace(
        features,
        fingerprint=policy_fingerprint(folder, options),
        state_class=kind.state_class,
        supports_rtc=rtc and not relative,
        observation_steps=steps,
        observation_stride_steps=stride,
        device=config.device,
        stochastic=kind.stochastic,
        batch_limit=kind.batch_limit,
        denoise_steps=denoise_steps(kind, config),
        max_delay_steps=max_delay_steps(config) if rtc and not relative else 0,
        notes=(*notes, *_notes(folder, kind, config, relative=rtc and relative)),
        embedding_cache_bytes=cache_bytes,
    )


def policy_fingerprint(folder: Checkpoint, options: LoadOptions) -> str:
    """
    Return the fingerprint of all files that are read, of the precision if the operator sets one,
    and of the commit if the policy is of the hub.
    """
    assets = {
        f'{number}/{file.name}': file
        for number, asset in enumerate(folder.assets)
        for file in asset.files
    }
    settings = {'dtype': options.dtype} if options.dtype else {}
    if of_hub := hub_origin(folder.path):
        settings['hub'] = str(of_hub)
    return fingerprint(policy_id(options), folder.files, assets, settings)


def _history(config: Any) -> tuple[int, int]:
    """Return the number of observations and their distance in control steps."""
    deltas = list(config.observation_delta_indices)
    gaps = {later - earlier for earlier, later in pairwise(deltas)} or {1}
    if len(gaps) != 1 or min(gaps) < 1 or deltas[-1] != 0:
        raise PolicyError(
            f'the policy uses the observations {deltas} control steps from now; supported are '
            'evenly spaced ones that end with the present'
        )
    return len(deltas), gaps.pop()


def denoise_steps(kind: PolicyTypeSpec, config: Any) -> int:
    """Return the number of denoising steps of a chunk, 0 for none."""
    counts = (getattr(config, name, None) for name in kind.steps)
    return next((int(count) for count in counts if count), 0)


def max_delay_steps(config: Any) -> int:
    """Return the longest delay that training-time RTC was trained for, 0 without that."""
    rtc = getattr(config, 'rtc_config', None)
    if getattr(rtc, 'mode', GUIDED) != TRAINED:
        return 0
    return int(getattr(config, 'rtc_training_max_delay', 0))


def _notes(folder: Checkpoint, kind: PolicyTypeSpec, config: Any, *, relative: bool) -> list[str]:
    notes = []
    if kind is EXTERNAL_TYPE:
        notes.append(
            f'{folder.policy_type} is of an installed package ({", ".join(POLICY_TYPES)} are '
            'known): one session at a time'
        )
    if relative:
        notes.append(RTC_OFF_NOTE)
    elif limit_steps := max_delay_steps(config):
        notes.append(
            f'real-time chunking was trained for delays up to {limit_steps} steps; a request with '
            'a longer one is refused'
        )
    if getattr(config, 'temporal_ensemble_coeff', None) is not None:
        notes.append('temporal ensembling is not applied: chunks are served as predicted')
    if getattr(config, 'n_action_repeats', 1) > 1:
        notes.append(
            f'n_action_repeats {config.n_action_repeats} is not applied: the planned actions are '
            'served one per control step'
        )
    return notes
