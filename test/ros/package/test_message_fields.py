# SPDX-License-Identifier: Apache-2.0
"""A message is built from fields that it has: rclpy ignores any other keyword without a word."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

FOLDERS = ('lerobot_serve', 'benchmarks', 'test')
INTERFACES = ('lerobot_serve_interfaces.msg', 'lerobot_serve_interfaces.srv')


def imported_types(tree: ast.Module) -> dict[str, type]:
    """Return the messages and services of this package that a module imports, by their name there."""
    return {
        alias.asname or alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in INTERFACES
        for alias in node.names
    }


def built_type(function: ast.expr, types: dict[str, type]) -> type | None:
    """Return the type that a call builds, None for any other call."""
    match function:
        case ast.Name(id=name):
            return types.get(name)
        case ast.Attribute(value=ast.Name(id=name), attr=('Request' | 'Response') as part):
            return getattr(types[name], part) if name in types else None
    return None


def unknown_fields(source: str) -> list[str]:
    tree = ast.parse(source)
    types = imported_types(tree)
    return [
        f'line {node.lineno}: {kind.__name__} has no {keyword.arg}'
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (kind := built_type(node.func, types))
        for keyword in node.keywords
        if keyword.arg and keyword.arg not in kind.get_fields_and_field_types()
    ]


@pytest.mark.parametrize('folder', FOLDERS)
def test_every_message_is_built_from_its_fields(repository: Path, folder):
    found = {
        str(file.relative_to(repository)): unknown
        for file in sorted((repository / folder).rglob('*.py'))
        if (unknown := unknown_fields(file.read_text()))
    }
    assert not found


def test_a_field_that_does_not_exist_is_found():
    source = (
        'from lerobot_serve_interfaces.msg import DropCount\n'
        'from lerobot_serve_interfaces.srv import ControlSlot\n'
        'DropCount(reason="x", number=1)\nControlSlot.Request(now=True)\n'
    )
    assert len(unknown_fields(source)) == 2
