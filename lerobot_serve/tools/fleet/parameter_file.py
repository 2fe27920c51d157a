# SPDX-License-Identifier: Apache-2.0
"""Read the values that a ROS parameter file has for one node, so that flags can replace them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.command_line import matches_node

KEY = 'ros__parameters'


def values_for(file: Path, node: str) -> dict[str, Any]:
    """
    Return the values for the node with this full name; later entries win, as in rcl. Raises
    UserError, also for a file without an entry for the node.
    """
    entries = list(_entries(_content(file), ''))
    fitting = [values for name, values in entries if matches_node(name, node)]
    if not fitting:
        named = ', '.join(name for name, _ in entries) or 'nothing'
        raise UserError(
            f'parameter file {file} has no entry for {node}, only for {named}; correct the name '
            'in the file, or give --name and --namespace'
        )
    found = {name: value for values in fitting for name, value in flattened(values)}
    return {name: value for name, value in found.items() if value != {}}


def flattened(values: dict[str, Any], prefix: str = '') -> Iterator[tuple[str, Any]]:
    """
    Yield name and value of each parameter; {canary: {plan: x}} is canary.plan. An empty mapping
    may be a group or a mistake.
    """
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}', value


def _content(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text('utf-8'))
    except OSError as error:
        raise UserError(f'parameter file {file}: {error.strerror or error}') from error
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f'parameter file {file}: {" ".join(str(error).split())}') from error


def _entries(content: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node name of the file with its parameters."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key != KEY:
            yield from _entries(value, f'{place}/{str(key).strip("/")}')
        elif isinstance(value, dict):
            yield place, value
