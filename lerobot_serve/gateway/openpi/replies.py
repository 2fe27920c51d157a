# SPDX-License-Identifier: Apache-2.0
"""The metadata frame and the replies of the door for openpi's client. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionError
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.peer_formats.msgpack_arrays import pack_openpi

OURS = 'lerobot_serve'
RESET_DONE = 'reset successful'
Columns = Mapping[str, list[int]]


def metadata_frame(contract: PolicyContract, more: Mapping[str, Any]) -> bytes:
    """Return the first message of a connection."""
    ours = {
        'note': NO_CAGE,
        'policy': contract.policy,
        'fingerprint': contract.fingerprint,
        'state_names': contract.state_names,
        'action_names': contract.action_names,
        'cameras': {name: list(shape) for name, shape in contract.cameras.items()},
        'chunk_steps': contract.chunk_steps,
        'control_hz': contract.control_hz,
    }
    return pack_openpi({**more, OURS: ours})


def reply_frame(prediction: Prediction, columns: Columns, timing: Mapping[str, float]) -> bytes:
    """
    Return the reply to an observation. Only actions are arrays: openpi's ActionChunkBroker cuts
    every array of a reply into steps. `timing` has times of the gateway [ms].
    """
    actions = {key: prediction.actions[:, at] for key, at in columns.items()}
    ours = prediction.told()
    server = {'infer_ms': ours.pop('inference_ms'), 'queue_wait_ms': ours.pop('queue_wait_ms')}
    return pack_openpi(
        {
            **actions,
            'server_timing': {**server, **timing},
            'policy_timing': {'infer_ms': server['infer_ms']},
            OURS: ours,
        }
    )


def error_text(error: PredictionError) -> str:
    """Return the text frame of a refusal; openpi's client raises it as RuntimeError."""
    retry = f'; retry after {error.retry_after_s:g} s' if error.retry_after_s else ''
    return f'{error.status}: {error.text}{retry}'
