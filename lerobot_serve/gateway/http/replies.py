# SPDX-License-Identifier: Apache-2.0
"""
Replies of the HTTP door: predictions, errors, headers under both names. The OpenAPI description is
made of their types. Pure.
"""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import quote

from aiohttp import web
import msgspec
from msgspec import Struct, UNSET, UnsetType

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import CODES, Prediction, PredictionError
from lerobot_serve.gateway.http.body import ActBody, described
from lerobot_serve.gateway.http.fields import FieldError
from lerobot_serve.gateway.upstream import PolicyContract

# of a header; % begins an encoded byte
SAFE_CHARACTERS = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
PREFIXES = ('X-Lerobot-Serve', 'X-Reflex')
# headers of a prediction
HEADERS = {
    'Policy-Slot': 'prod, a or b: the slot that answered',
    'Model-Version': 'id@hash of the policy that answered',
    'Routing-Key': 'what the episode was routed by; percent-encoded',
    'Routing-Degraded': 'true where there was no episode_id',
}
# the next observation may be smaller: the size of a JPEG depends on what the camera sees
RETRIED, RETRY_AFTER_S = (413, 503), 1
NO_EPISODE = (
    'no episode_id: the request is routed with all others of this client, and a new episode is '
    'not seen; send an episode_id that is the same for all requests of an episode'
)


class Routing(Struct):
    """By what a request was placed, and where."""

    slot: str
    routing_key: str
    degraded: bool


class ActReply(Struct, kw_only=True):
    """The reply to POST /act."""

    actions: Annotated[
        list[list[float]], described('one list for each control step; always finite')
    ]
    action_names: Annotated[tuple[str, ...], described('of the columns')]
    episode_id: str
    request_id: str
    policy: str
    model_version: Annotated[str, described(HEADERS['Model-Version'])]
    sequence: int
    inference_ms: float
    queue_wait_ms: float
    policy_changed: Annotated[bool, described('another policy than the last one answered')]
    text: str
    routing: Routing
    warning: Annotated[str, described(f'once for each client: {NO_EPISODE}')] | UnsetType = UNSET


class ActError(Struct, kw_only=True):
    """Why there is no prediction."""

    status: str
    text: Annotated[str, described('what was given, what is allowed, what to do')]
    field: Annotated[str, described('with status 400')] | UnsetType = UNSET
    given: str | UnsetType = UNSET
    allowed: str | UnsetType = UNSET
    retry_after_s: float | UnsetType = UNSET


class ErrorReply(Struct):
    """The reply to a request without a prediction."""

    error: ActError


def headers_of(reply: ActReply) -> dict[str, str]:
    """Return headers under both prefixes; what is not printable ASCII is percent-encoded."""
    routing = reply.routing
    degraded = 'true' if routing.degraded else 'false'
    values = (routing.slot, reply.model_version, routing.routing_key, degraded)
    return {
        f'{prefix}-{name}': quote(value, safe=SAFE_CHARACTERS)
        for prefix in PREFIXES
        for name, value in zip(HEADERS, values, strict=True)
    }


def prediction_reply(
    body: ActBody, prediction: Prediction, contract: PolicyContract, *, warns: bool
) -> web.Response:
    """Return the reply to POST /act."""
    fields = prediction.as_reply()
    routing = Routing(fields.pop('slot'), fields.pop('episode_id'), not body.episode_id)
    reply = ActReply(
        actions=prediction.actions.tolist(),
        action_names=contract.action_names,
        episode_id=body.episode_id,
        request_id=body.request_id,
        model_version=fields.pop('fingerprint'),
        routing=routing,
        warning=NO_EPISODE if warns else UNSET,
        **fields,
    )
    return _response(reply, headers=headers_of(reply))


def _response(content: Struct, status: int = 200, **given: Any) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(
        body=body, status=status, content_type='application/json', charset='utf-8', **given
    )


def error_reply(error: PredictionError) -> web.Response:
    """Return the reply to a request without a prediction."""
    status, headers = CODES[error.status][0], {}
    content = ActError(status=error.status, text=error.text)
    if isinstance(error, FieldError):
        content.field, content.given, content.allowed = error.field, error.given, error.allowed
    if error.retry_after_s or status in (429, 503):
        content.retry_after_s = error.retry_after_s
        headers['Retry-After'] = str(max(1, math.ceil(error.retry_after_s)))
    if status == 401:
        headers['WWW-Authenticate'] = 'Bearer'
    return _response(ErrorReply(content), status, headers=headers)


def refusal(status: int, reason: str, text: str) -> web.Response:
    """Return the reply to a refused request; the connection ends with it."""
    content = ActError(status=reason, text=text)
    headers = {}
    if status in RETRIED:
        content.retry_after_s = RETRY_AFTER_S
        headers['Retry-After'] = str(RETRY_AFTER_S)
    response = _response(ErrorReply(content), status, headers=headers)
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
