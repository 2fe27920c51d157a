# SPDX-License-Identifier: Apache-2.0
"""
The topics that the robot file of an edge controller names: inputs, a person's device, commands.

The text comes from the network: it is bounded, and nothing that it names is opened. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lerobot_serve.contract.names import is_topic
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.file_format import (
    CAMERA_TYPES,
    DEVICE_TYPE,
    DEVICE_TYPES,
    full_type,
    JOINT_STATE,
    JOY,
    parse_received_yaml,
    RobotFileError,
    STATE_TYPES,
)
from lerobot_serve.files.parsing import shown

TOPICS_LIMIT = 64


def robot_topics(text: str, node: str) -> dict[str, str]:
    """
    Return full name and type of each topic, as the node of this full name resolves them. Raises
    RobotFileError.
    """
    place = f'{node}/robot_file'
    found: dict[str, str] = {}
    for name, kind, allowed in _named(parse_received_yaml(text, place)):
        topic = resolved(name, node) if isinstance(name, str) else ''
        if not is_topic(topic):
            raise RobotFileError(f'{place}: {shown(name)} is not the name of a topic')
        if kind not in allowed:
            listed = ', '.join(allowed)
            raise RobotFileError(f'{place}: {topic} must be of {listed}, got {shown(kind)}')
        found[topic] = full_type(kind)
        if len(found) > TOPICS_LIMIT:
            raise RobotFileError(f'{place}: more than {TOPICS_LIMIT} topics')
    return found


def resolved(name: str, node: str) -> str:
    """Return the full name of a topic that a node names."""
    if name.startswith('/'):
        return name
    if name.startswith('~/'):
        return node + name[1:]
    return f'{node.rpartition("/")[0]}/{name}'


def _named(content: Any) -> Iterator[tuple[Any, Any, list[str]]]:
    """Yield name, type and the allowed types of each topic that is named."""
    top = _mapping(content)
    state = top.get('state')
    for each in state if isinstance(state, list) else []:
        yield *_topic(each, JOINT_STATE), STATE_TYPES
    for each in _mapping(top.get('cameras')).values():
        yield *_topic(each, CAMERA_TYPES[0]), CAMERA_TYPES
    commands = list(COMMAND_TYPES)
    if command := _mapping(top.get('command')):
        yield *_topic(command, commands[0]), commands
    if device := _mapping(top.get('intervention')):
        yield *_topic(device, DEVICE_TYPE), DEVICE_TYPES
        if 'topic' in (deadman := _mapping(device.get('deadman'))):
            yield deadman['topic'], JOY, [JOY]


def _topic(content: Any, kind: str) -> tuple[Any, Any]:
    table = _mapping(content)
    return table.get('topic'), table.get('type', kind)


def _mapping(content: Any) -> dict[Any, Any]:
    return content if isinstance(content, dict) else {}
