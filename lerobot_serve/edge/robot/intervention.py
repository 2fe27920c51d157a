# SPDX-License-Identifier: Apache-2.0
"""The device of a person: plain data, made of `intervention` in a robot file, and its checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lerobot_serve.cage.description import ActionLimit
from lerobot_serve.edge.robot import file_format
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.file_format import JOY, RobotFileError


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


def device_of(given: file_format.Device) -> InterventionInput:
    """Return the device of a robot file; a deadman without a topic is on the joystick itself."""
    deadman = given.deadman
    return InterventionInput(
        given.topic,
        given.type,
        given.timeout_s,
        Deadman(deadman.topic or given.topic, deadman.button) if deadman else None,
        tuple(JoyAxis(name, each.axis, each.scale) for name, each in (given.axes or {}).items()),
    )


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
    elif refusal := COMMAND_TYPES[device.type](actions):
        raise RobotFileError(f'{place}: {device.type} {refusal}')


def _check_axes(axes: tuple[JoyAxis, ...], actions: Iterable[str], place: str) -> None:
    known = tuple(actions)
    for axis in axes:
        if axis.action not in known:
            raise RobotFileError(
                f'{place}: axes: no action {axis.action!r}; there are {", ".join(known)}'
            )
