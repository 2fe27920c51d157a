# SPDX-License-Identifier: Apache-2.0
"""
The device of a person in a robot file: `intervention`. Plain data and its parser.

    intervention:
      topic: leader/joint_states
      type: sensor_msgs/JointState
      timeout_s: 0.2                      # older commands and deadman messages do not count
      deadman: {topic: joy, button: 4}    # optional: a button that must be held

With the type sensor_msgs/Joy, `axes` maps actions to axes, as units per second at full
deflection: `axes: {shoulder_pan.pos: {axis: 0, scale: 0.5}}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lerobot_serve.cage.description import ActionLimit
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.yaml_mapping import named_entries, RobotFileError, YamlMapping

JOY = 'sensor_msgs/Joy'
DEFAULT_TYPE = 'sensor_msgs/JointState'
# a person commands with what a robot is commanded with, or with a joystick
TYPES = [*COMMAND_TYPES, JOY]
KEYS, JOY_KEYS = 'topic type timeout_s deadman', 'topic type timeout_s deadman axes'
DEFAULT_TIMEOUT_S = 0.2
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.01, 2.0
MAX_INDEX = 63
MAX_SCALE = 1e6


@dataclass(frozen=True, slots=True)
class Deadman:
    """A button of a sensor_msgs/Joy that must be held."""

    topic: str
    button: int


@dataclass(frozen=True, slots=True)
class JoyAxis:
    """An axis that moves an action: `scale` per second at full deflection."""

    action: str
    axis: int
    scale: float


@dataclass(frozen=True, slots=True)
class InterventionInput:
    """Topic and type of a person's commands; `axes` for sensor_msgs/Joy."""

    topic: str
    type: str
    timeout_s: float
    deadman: Deadman | None = None
    axes: tuple[JoyAxis, ...] = ()


def parse_intervention(content: Any, place: str) -> InterventionInput:
    """Parse `intervention` of a robot file. Raises RobotFileError."""
    kind = YamlMapping(content, place, JOY_KEYS).message_type(TYPES, DEFAULT_TYPE)
    table = YamlMapping(content, place, JOY_KEYS if kind == JOY else KEYS)
    topic = table.topic('topic')
    return InterventionInput(
        topic,
        kind,
        table.number('timeout_s', MIN_TIMEOUT_S, MAX_TIMEOUT_S, DEFAULT_TIMEOUT_S),
        _deadman(table, topic if kind == JOY else None) if 'deadman' in table else None,
        _axes(table) if kind == JOY else (),
    )


def _deadman(table: YamlMapping, joy_topic: str | None) -> Deadman:
    inner = YamlMapping(table.need('deadman'), f'{table.place}: deadman', 'topic button')
    topic = joy_topic if joy_topic and 'topic' not in inner else inner.topic('topic')
    return Deadman(topic, _index(inner, 'button'))


def _axes(table: YamlMapping) -> tuple[JoyAxis, ...]:
    entries = named_entries(table.need('axes'), f'{table.place}: axes')
    if not entries:
        raise RobotFileError(f'{table.place}: axes is empty; map at least one action')
    return tuple(_axis(*entry) for entry in entries)


def _axis(action: str, content: Any, place: str) -> JoyAxis:
    table = YamlMapping(content, place, 'axis scale')
    scale = table.number('scale', -MAX_SCALE, MAX_SCALE)
    if not scale:
        raise RobotFileError(f'{place}: scale must not be 0: the axis would move nothing')
    return JoyAxis(action, _index(table, 'axis'), scale)


def _index(table: YamlMapping, key: str) -> int:
    value = table.number(key, 0, MAX_INDEX)
    if value != int(value):
        raise RobotFileError(f'{table.place}: {key} must be a whole number, got {value:g}')
    return int(value)


def check_intervention(
    device: InterventionInput,
    actions: tuple[ActionLimit, ...],
    inputs: dict[str, str],
    command_topic: str,
    place: str,
) -> None:
    """
    Check a device against its robot; `inputs` has the types of the other input topics. Raises
    RobotFileError.
    """
    deadman_topics = [device.deadman.topic] if device.deadman else []
    for topic in (device.topic, *deadman_topics):
        if topic == command_topic:
            raise RobotFileError(
                f'{place}: topic {topic} is the command topic of the robot; use another one: the '
                'edge controller passes on what a person commands'
            )
        if topic in inputs:
            raise RobotFileError(
                f'{place}: topic {topic} is also a state or camera topic; a person needs a topic '
                'of their own'
            )
    if device.deadman and device.deadman.topic == device.topic and device.type != JOY:
        raise RobotFileError(
            f'{place}: deadman: topic {device.topic} has the type {device.type}; a deadman is a '
            f'button of {JOY}'
        )
    if device.type == JOY:
        _check_axes(device.axes, (action.name for action in actions), place)
    elif refusal := COMMAND_TYPES[device.type].refusal(actions):
        raise RobotFileError(f'{place}: {device.type} {refusal}')


def _check_axes(axes: tuple[JoyAxis, ...], actions: Iterable[str], place: str) -> None:
    known = tuple(actions)
    for axis in axes:
        if axis.action not in known:
            raise RobotFileError(
                f'{place}: axes: no action {axis.action!r}; there are {", ".join(known)}'
            )
