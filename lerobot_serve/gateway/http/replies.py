# SPDX-License-Identifier: Apache-2.0
"""Replies of the HTTP door: predictions, errors, headers under both names. Pure."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

from aiohttp import web

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionError, Status
from lerobot_serve.gateway.http.body import ActBody
from lerobot_serve.gateway.http.fields import FieldError
from lerobot_serve.gateway.upstream import PolicyContract

# of a header; % begins an encoded byte
SAFE_CHARACTERS = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
OURS, THEIRS = 'X-Lerobot-Serve', 'X-Reflex'
SLOT, VERSION, KEY, DEGRADED = (
    'Policy-Slot',
    'Model-Version',
    'Routing-Key',
    'Routing-Degraded',
)
HTTP_STATUS = {
    Status.INVALID: 400,
    Status.UNAUTHORIZED: 401,
    Status.SUPERSEDED: 409,
    Status.OVERLOADED: 429,
    Status.QUOTA: 429,
    Status.FAILED: 502,
    Status.NOT_FINITE: 502,
    Status.UNAVAILABLE: 503,
    Status.TOO_LATE: 504,
}
# the next observation may be smaller: the size of a JPEG depends on what the camera sees
RETRIED, RETRY_AFTER_S = (413, 503), 1
NO_EPISODE = (
    'no episode_id: the request is routed with all others of this client, and a new episode is '
    'not seen; send an episode_id that is the same for all requests of an episode'
)


def headers_of(values: dict[str, str]) -> dict[str, str]:
    """Return headers under both prefixes; what is not printable ASCII is percent-encoded."""
    return {
        f'{prefix}-{name}': quote(value, safe=SAFE_CHARACTERS)
        for prefix in (OURS, THEIRS)
        for name, value in values.items()
    }


def prediction_reply(
    body: ActBody, prediction: Prediction, contract: PolicyContract, *, warns: bool
) -> web.Response:
    """Return the reply to POST /act."""
    is_degraded, key = not body.episode_id, prediction.episode_id
    content: dict[str, Any] = {
        'actions': prediction.actions.tolist(),
        'action_names': contract.action_names,
        'episode_id': body.episode_id,
        'request_id': body.request_id,
        'policy': prediction.policy,
        'model_version': prediction.fingerprint,
        'sequence': prediction.sequence,
        'inference_ms': prediction.inference_ms,
        'queue_wait_ms': prediction.queue_wait_ms,
        'policy_changed': prediction.policy_changed,
        'text': prediction.text,
        'routing': {'slot': prediction.slot, 'routing_key': key, 'degraded': is_degraded},
    }
    if warns:
        content['warning'] = NO_EPISODE
    headers = headers_of(
        {
            SLOT: prediction.slot,
            VERSION: prediction.fingerprint,
            KEY: key,
            DEGRADED: 'true' if is_degraded else 'false',
        }
    )
    return web.json_response(content, headers=headers)


def error_reply(error: PredictionError) -> web.Response:
    """Return the reply to a request without a prediction."""
    status, headers = HTTP_STATUS[error.status], {}
    content: dict[str, Any] = {'status': error.status, 'text': error.text}
    if isinstance(error, FieldError):
        content |= {'field': error.field, 'given': error.given, 'allowed': error.allowed}
    if error.retry_after_s or status in (429, 503):
        content['retry_after_s'] = error.retry_after_s
        headers['Retry-After'] = str(max(1, math.ceil(error.retry_after_s)))
    if status == 401:
        headers['WWW-Authenticate'] = 'Bearer'
    return web.json_response({'error': content}, status=status, headers=headers)


class Refused(Exception):
    """A request that is refused before its body is known; `reason` is one word."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason, self.text = status, reason, text


def refusal(refused: Refused) -> web.Response:
    """Return the reply to a refused request; the connection ends with it."""
    content: dict[str, Any] = {'status': refused.reason, 'text': refused.text}
    headers = {}
    if refused.status in RETRIED:
        content['retry_after_s'] = RETRY_AFTER_S
        headers['Retry-After'] = str(RETRY_AFTER_S)
    response = web.json_response({'error': content}, status=refused.status, headers=headers)
    response.force_close()
    return response


def config_content(contract: PolicyContract, limits: dict[str, Any]) -> dict[str, Any]:
    """Return the content of GET /config."""
    return {
        'policy': contract.policy,
        'model_version': contract.fingerprint,
        'state_names': contract.state_names,
        'action_names': contract.action_names,
        'cameras': {
            name: dict(zip(('height', 'width', 'channels'), shape, strict=True))
            for name, shape in contract.cameras.items()
        },
        'chunk_steps': contract.chunk_steps,
        'control_hz': contract.control_hz,
        'limits': limits,
        'note': NO_CAGE,
    }
