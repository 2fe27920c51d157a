# SPDX-License-Identifier: Apache-2.0
"""
The OpenAPI description of the HTTP endpoint, from the types of its messages; the same as a page
for people: how to ask, which fields, which errors. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
import json
from typing import Any

import msgspec

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.http.body import ActBody
from lerobot_serve.gateway.http.images import ALLOWED, Image
from lerobot_serve.gateway.http.replies import ActReply, ErrorReply, HEADERS, PREFIXES

Json = dict[str, Any]
EXAMPLE = {
    'episode_id': 'ep_xyz',
    'instruction': 'pick up the cup',
    'state': [0.0, 0.5, -0.3],
    'images': {'observation.images.front': '<base64 of a JPEG file>'},
}
STYLE = (
    'body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}'
    'td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}'
    'pre{background:#f4f4f4;padding:1rem;overflow:auto}'
)


def header_descriptions() -> Json:
    """Return the headers of a prediction, by name."""
    return {
        f'{prefix}-{name}': {'description': text, 'schema': {'type': 'string'}}
        for prefix in PREFIXES
        for name, text in HEADERS.items()
    }


def _error(description: str, *headers: str) -> Json:
    schema = {'$ref': '#/components/schemas/ErrorReply'}
    return {
        'description': description,
        'content': {'application/json': {'schema': schema}},
        'headers': {name: {'schema': {'type': 'integer'}} for name in headers},
    }


def _act() -> Json:
    retry = 'Retry-After'
    reply = {'application/json': {'schema': {'$ref': '#/components/schemas/ActReply'}}}
    return {
        'summary': 'Observations in, a chunk of actions out',
        'description': f'Note: {NO_CAGE}.',
        'requestBody': {
            'required': True,
            'content': {
                'application/json': {
                    'schema': {'$ref': '#/components/schemas/ActBody'},
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


def _schemas() -> Json:
    """Return the schemas of bodies and replies, by the names of their types."""
    place = '#/components/schemas/{name}'
    kinds = (ActBody, ActReply, ErrorReply, Image)
    (*_, image), schemas = msgspec.json.schema_components(kinds, ref_template=place)
    return {**schemas, 'Image': image}


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
        'components': {'schemas': _schemas()},
    }
    if needs_token:
        found['components']['securitySchemes'] = {'token': {'type': 'http', 'scheme': 'bearer'}}
        found['paths']['/act']['post']['security'] = [{'token': []}]
        found['paths']['/config']['get']['security'] = [{'token': []}]
    return found


def _get(summary: str) -> Json:
    return {'summary': summary, 'responses': {'200': {'description': 'JSON'}}}


def page(description: Json, address: str) -> str:
    """Return the page, from the description."""
    act = description['paths']['/act']['post']
    fields = description['components']['schemas']['ActBody']['properties']
    paths = description['paths'].items()
    parts = [
        f'<h1>{escape(description["info"]["title"])}</h1>',
        f'<p>{escape(description["info"]["description"])} '
        'Machine-readable: <a href="openapi.json">openapi.json</a>.</p>',
        _table(
            (f'{method.upper()} {path}', operation['summary'])
            for path, operations in paths
            for method, operation in operations.items()
        ),
        '<h2>POST /act</h2>',
        f'<pre>{escape(_command(address))}</pre>',
        _table((name, _meaning(schema)) for name, schema in fields.items()),
        f'<p>A picture is {escape(ALLOWED)}.</p>',
        '<h2>Replies</h2>',
        _table((status, each['description']) for status, each in act['responses'].items()),
        '<h2>Headers of a prediction</h2>',
        _table((name, each['description']) for name, each in header_descriptions().items()),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>lerobot_serve gateway</title>'
        f'<style>{STYLE}</style><body>{"".join(parts)}</body></html>'
    )


def _meaning(schema: Json) -> str:
    return str(schema['description'])


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = (f'<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>' for a, b in rows)
    return f'<table>{"".join(lines)}</table>'


def _command(address: str) -> str:
    body = json.dumps(EXAMPLE, indent=2)
    return f"curl {address}/act -H 'Content-Type: application/json' -d '{body}'"
