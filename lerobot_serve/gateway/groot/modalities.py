# SPDX-License-Identifier: Apache-2.0
"""The reply to get_modality_config: the keys of the policy, as GR00T's clients read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lerobot_serve.gateway.callers.mapping import CAMERA_PREFIX, NameMapping
from lerobot_serve.gateway.upstream import PolicyContract


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
