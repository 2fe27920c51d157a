# SPDX-License-Identifier: Apache-2.0
"""The page of the HTTP door: how to ask, which fields, which errors. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
import json

from lerobot_serve.gateway.http.images import ALLOWED
from lerobot_serve.gateway.http.openapi import EXAMPLE, header_descriptions, Json

STYLE = (
    'body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}'
    'td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}'
    'pre{background:#f4f4f4;padding:1rem;overflow:auto}'
)


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
