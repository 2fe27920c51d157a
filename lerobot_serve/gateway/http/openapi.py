# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI description of the HTTP door. Pure."""

from __future__ import annotations

from typing import Any

from lerobot_serve.contract.limits import ID_LIMIT, TASK_LIMIT
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import (
    DELAY_STEPS_LIMIT,
    IMAGES_LIMIT,
    TIMEOUT_LIMIT_S,
)
from lerobot_serve.gateway.http.body import KEYS
from lerobot_serve.gateway.http.images import ALLOWED
from lerobot_serve.gateway.http.replies import (
    DEGRADED,
    KEY,
    NO_EPISODE,
    OURS,
    SLOT,
    THEIRS,
    VERSION,
)

Json = dict[str, Any]
EXAMPLE = {
    'episode_id': 'ep_xyz',
    'instruction': 'pick up the cup',
    'state': [0.0, 0.5, -0.3],
    'images': {'observation.images.front': '<base64 of a JPEG file>'},
}


def _text(description: str, limit: int = ID_LIMIT) -> Json:
    return {'type': 'string', 'maxLength': limit, 'description': description}


def _image_schema() -> Json:
    data: Json = {'type': 'string', 'contentEncoding': 'base64'}
    shape = {
        'type': 'array',
        'items': {'type': 'integer', 'minimum': 1},
        'minItems': 3,
        'maxItems': 3,
        'description': 'height, width, 3; then data are raw RGB bytes, row by row',
    }
    rows: Json = {'type': 'integer', 'minimum': 0, 'maximum': 255}
    for _ in range(3):
        rows = {'type': 'array', 'items': rows}
    return {
        'description': f'A picture in RGB: {ALLOWED}. Text may begin with data:image/...;base64,',
        'oneOf': [
            data,
            {
                'type': 'object',
                'properties': {'data': data, 'shape': shape},
                'required': ['data'],
                'additionalProperties': False,
            },
            rows,
        ],
    }


def _body_properties() -> Json:
    image = {'$ref': '#/components/schemas/Image'}
    numbers = {'type': 'array', 'items': {'type': 'number'}}
    return {
        'episode_id': _text(
            'the same for all requests of an episode: an episode keeps its policy. Without it '
            'routing is degraded'
        ),
        'request_id': _text('comes back in the reply'),
        'client_id': _text(
            'name of the robot: requests with the same name share a session; a newer one replaces '
            'one that waits (409). Without it, each episode_id of a host is a session'
        ),
        'instruction': _text('what to do', TASK_LIMIT),
        'task': _text('another name of instruction', TASK_LIMIT),
        'state': {
            'description': 'numbers in the order of state_names of GET /config, or by name; a '
            'mapping of the door may name keys with several numbers',
            'oneOf': [
                numbers,
                {
                    'type': 'object',
                    'additionalProperties': {'oneOf': [{'type': 'number'}, numbers]},
                },
            ],
        },
        'image': {**image, 'description': 'the picture of a policy with one camera'},
        'images': {
            'type': 'object',
            'maxProperties': IMAGES_LIMIT,
            'additionalProperties': image,
            'description': 'by the camera names of GET /config',
        },
        'episode_start': {'type': 'boolean', 'description': 'begin a new episode with this one'},
        'timeout_s': {
            'type': 'number',
            'minimum': 0,
            'maximum': TIMEOUT_LIMIT_S,
            'description': 'a later prediction is refused (504); 0: the limit of the gateway',
        },
        'inference_delay_steps': {
            'type': 'integer',
            'minimum': 0,
            'maximum': DELAY_STEPS_LIMIT,
            'description': 'control steps that pass before the first action is executed',
        },
    }


def _reply_properties() -> Json:
    text, number = {'type': 'string'}, {'type': 'number'}
    flag = {'type': 'boolean'}
    rows = {'type': 'array', 'items': {'type': 'array', 'items': number}}
    routing = {
        'type': 'object',
        'properties': {'slot': text, 'routing_key': text, 'degraded': flag},
    }
    return {
        'actions': {**rows, 'description': 'one list for each control step; always finite'},
        'action_names': {'type': 'array', 'items': text, 'description': 'of the columns'},
        'episode_id': text,
        'request_id': text,
        'policy': text,
        'model_version': {**text, 'description': 'id@hash of the policy that answered'},
        'sequence': {'type': 'integer'},
        'inference_ms': number,
        'queue_wait_ms': number,
        'policy_changed': {**flag, 'description': 'another policy than the last one answered'},
        'text': text,
        'routing': routing,
        'warning': {**text, 'description': f'once for each client: {NO_EPISODE}'},
    }


def _error_schema() -> Json:
    text = {'type': 'string'}
    error = {
        'type': 'object',
        'required': ['status', 'text'],
        'properties': {
            'status': text,
            'text': {**text, 'description': 'what was given, what is allowed, what to do'},
            'field': {**text, 'description': 'with status 400'},
            'given': text,
            'allowed': text,
            'retry_after_s': {'type': 'number'},
        },
    }
    return {'type': 'object', 'properties': {'error': error}}


def header_descriptions() -> Json:
    """Return the headers of a prediction, by name."""
    described = {
        SLOT: 'prod, a or b: the slot that answered',
        VERSION: 'id@hash of the policy that answered',
        KEY: 'what the episode was routed by; percent-encoded',
        DEGRADED: 'true where there was no episode_id',
    }
    return {
        f'{prefix}-{name}': {'description': text, 'schema': {'type': 'string'}}
        for prefix in (OURS, THEIRS)
        for name, text in described.items()
    }


def _error(description: str, *headers: str) -> Json:
    schema = {'$ref': '#/components/schemas/Error'}
    return {
        'description': description,
        'content': {'application/json': {'schema': schema}},
        'headers': {name: {'schema': {'type': 'integer'}} for name in headers},
    }


def _act() -> Json:
    retry = 'Retry-After'
    reply = {'application/json': {'schema': {'$ref': '#/components/schemas/Reply'}}}
    return {
        'summary': 'Observations in, a chunk of actions out',
        'description': f'Note: {NO_CAGE}.',
        'requestBody': {
            'required': True,
            'content': {
                'application/json': {
                    'schema': {'$ref': '#/components/schemas/Act'},
                    'example': EXAMPLE,
                }
            },
        },
        'responses': {
            '200': {
                'description': 'a prediction',
                'headers': header_descriptions(),
                'content': reply,
            },
            '400': _error('a field is wrong: field, given, allowed'),
            '401': _error('no token, or a wrong one'),
            '408': _error('the body did not arrive in time'),
            '409': _error('a newer request of this client replaced this one'),
            '413': _error('the body is larger than limits.max_message_mb of GET /config', retry),
            '415': _error('the Content-Type is not application/json'),
            '429': _error('more callers or requests than allowed', retry),
            '502': _error('the policy failed, or returned NaN or infinity'),
            '503': _error('no server responds', retry),
            '504': _error('no prediction within timeout_s'),
        },
    }


def document(version: str, *, needs_token: bool) -> Json:
    """Return the OpenAPI description."""
    found: Json = {
        'openapi': '3.1.0',
        'info': {
            'title': 'lerobot_serve gateway',
            'version': version,
            'description': f'Actions of robot policies over HTTP. Note: {NO_CAGE}.',
        },
        'paths': {
            '/act': {'post': _act()},
            '/health': {'get': _get('200 where a server responds, 503 otherwise; no token')},
            '/config': {'get': _get('names, sizes and limits of the policy and of the door')},
            '/openapi.json': {'get': _get('this description; no token')},
        },
        'components': {
            'schemas': {
                'Act': {
                    'type': 'object',
                    'properties': {name: _body_properties()[name] for name in KEYS},
                    'additionalProperties': False,
                },
                'Image': _image_schema(),
                'Reply': {'type': 'object', 'properties': _reply_properties()},
                'Error': _error_schema(),
            }
        },
    }
    if needs_token:
        found['components']['securitySchemes'] = {'token': {'type': 'http', 'scheme': 'bearer'}}
        found['paths']['/act']['post']['security'] = [{'token': []}]
        found['paths']['/config']['get']['security'] = [{'token': []}]
    return found


def _get(summary: str) -> Json:
    return {'summary': summary, 'responses': {'200': {'description': 'JSON'}}}
