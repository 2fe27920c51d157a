# SPDX-License-Identifier: Apache-2.0
"""
Turn the data of get_action and reset into requests of a session, and the keys of the policy into
the reply to get_modality_config, as GR00T's clients read it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.gateway.callers.mapping import CAMERA_PREFIX, NameMapping
from lerobot_serve.gateway.callers.predictions import (
    invalid,
    PredictionRequest,
)
from lerobot_serve.gateway.upstream import PolicyContract

MODALITIES = ('video', 'state', 'language')
OPTIONS = ('episode_id',)
# dimensions, characters of the types that are taken, the type that is told, and the form
FORMS = {
    'video': (5, 'B', 'uint8', 'B x T x height x width x 3'),
    'state': (3, 'efdbhilqBHILQ', 'float32', 'B x T x values'),
}


def prediction_request(
    data: Any,
    mapping: NameMapping,
    contract: PolicyContract,
    *,
    episode_start: bool,
    episode_id: str = '',
) -> PredictionRequest:
    """
    Return the request in the data of get_action; `episode_id` is that of the reset before it.
    Raises PredictionError.
    """
    if not isinstance(data, dict) or not isinstance(data.get('observation'), dict):
        raise invalid('get_action needs data with an observation, a map of video, state, language')
    observation = data['observation']
    if unknown := [key for key in observation if key not in MODALITIES]:
        raise invalid(
            f'observation has {str(unknown[0])[:120]!r}; allowed are {", ".join(MODALITIES)}, '
            'each a map (flat keys such as video.front are of an older GR00T)'
        )
    images, state = (
        {key: _entry(name, key, value) for key, value in _group(observation, name).items()}
        for name in FORMS
    )
    return PredictionRequest(
        mapping.state_vector(state, contract),
        mapping.images(images, contract),
        _task(_group(observation, 'language')),
        episode_id=episode_of(data) or episode_id,
        episode_start=episode_start,
    )


def episode_of(data: Any) -> str:
    """Return the episode in the options, '' without one. Raises PredictionError."""
    options = data.get('options') if isinstance(data, dict) else None
    if options is None:
        return ''
    if not isinstance(options, dict):
        raise invalid(f'options must be a map or None, got {type(options).__name__}')
    if unknown := [key for key in options if key not in OPTIONS]:
        raise invalid(f'options has {str(unknown[0])[:120]!r}; allowed are {", ".join(OPTIONS)}')
    episode = options.get('episode_id', '')
    if not isinstance(episode, str):
        raise invalid(f'episode_id must be a text, got {type(episode).__name__}')
    if not is_printable(episode, ID_LIMIT):
        raise invalid(
            f'episode_id must be printable text of at most {ID_LIMIT} bytes, got {episode[:80]!r}'
        )
    return episode


def _group(observation: dict[str, Any], name: str) -> dict[str, Any]:
    group = observation.get(name, {})
    if not isinstance(group, dict) or not all(isinstance(key, str) for key in group):
        raise invalid(f'{name} must be a map from names, got {type(group).__name__}')
    return group


def _entry(group: str, key: str, value: object) -> NDArray[Any]:
    """Return an array of one batch and one time step, without both. Raises PredictionError."""
    dimensions, types, kind, form = FORMS[group]
    name = f'{group} {key[:120]!r}'
    if not isinstance(value, np.ndarray):
        raise invalid(f'{name} must be an array, {form} of {kind}, got {type(value).__name__}')
    if value.ndim != dimensions:
        raise invalid(f'{name} must be {form} of {kind}, got the shape {value.shape}')
    batch, steps = value.shape[:2]
    if batch != 1:
        raise invalid(
            f'{name} has a batch of {batch}; one observation is allowed, because each client is '
            'one robot: open a client for each robot'
        )
    if steps != 1:
        raise invalid(f'{name} has {steps} time steps, get_modality_config asks for 1')
    if value.dtype.char not in types:
        raise invalid(f'{name} must be of {kind}, got {value.dtype}')
    values: NDArray[Any] = value[0, 0]
    return values


def _task(language: dict[str, Any]) -> str:
    """Return the instruction, [[text]] under its one key."""
    if not language:
        return ''
    if len(language) > 1:
        raise invalid(f'language must have one key, got {", ".join(language)[:200]}')
    ((key, batch),) = language.items()
    if isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], list):
        (steps,) = batch
        if len(steps) == 1 and isinstance(steps[0], str):
            text: str = steps[0]
            return text
    raise invalid(f'language {key[:120]!r} must be [[text]], one batch with one step')


def modality_config(
    contract: PolicyContract, mapping: NameMapping, language_key: str
) -> dict[str, Any]:
    """Return the modalities; every observation has one time step."""
    return {
        'video': _modality(video_keys(contract, mapping), [0]),
        'state': _modality(mapping.state or contract.state_names, [0]),
        'action': _modality(mapping.action_columns(contract), list(range(contract.chunk_steps))),
        'language': _modality([language_key], [0]),
    }


def video_keys(contract: PolicyContract, mapping: NameMapping) -> list[str]:
    """Return what a client calls each camera of the policy."""
    theirs = {ours: name for name, ours in mapping.cameras.items() if ours}
    return [theirs.get(ours, ours.removeprefix(CAMERA_PREFIX)) for ours in contract.cameras]


def _modality(keys: Iterable[str], delta_indices: list[int]) -> dict[str, Any]:
    fields = {'delta_indices': delta_indices, 'modality_keys': list(keys)}
    # clients of different versions read one or the other
    return {'__ModalityConfig_class__': True, 'as_json': fields, 'as_dict': fields}
