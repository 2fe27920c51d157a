# SPDX-License-Identifier: Apache-2.0
"""Consistency checks of a robot description. Every check raises RobotFileError."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from lerobot_serve.cage.description import ActionLimit, Interlock, Motion
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.description import (
    CameraInput,
    measuring_indices,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.robot.file_format import (
    InterventionInput,
    JOINT_STATE,
    JOY,
    RobotFileError,
)
from lerobot_serve.edge.robot.units import KINDS, RATES
from lerobot_serve.parameters import closest_name


def check_robot(robot: RobotDescription, place: str) -> None:
    refuse_duplicates(robot.own_state_names, f'{place}: state: the name')
    refuse_duplicates(robot.action_joints, f'{place}: actions: joint')
    _check_topics(robot, place)
    _check_stopping(robot, f'{place}: actions')
    _check_measured(robot, f'{place}: actions')
    _check_joints(robot, f'{place}: actions')
    _check_command(robot, f'{place}: command')
    for interlock in robot.interlocks:
        _check_interlock(interlock, robot, f'{place}: interlocks: {interlock.name}')
    _check_safe_pose(robot, f'{place}: safe_pose')
    _check_names(robot, f'{place}: rename_map')
    _check_units(robot, f'{place}: units')
    if robot.intervention:
        inputs = {source.topic: source.type for source in robot.state}
        inputs |= {camera.topic: camera.type for camera in robot.cameras}
        _check_intervention(
            robot.intervention,
            robot.actions,
            inputs,
            robot.command.topic,
            f'{place}: intervention',
        )


def refuse_duplicates(names: tuple[str, ...], place: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RobotFileError(f'{place}: duplicate {name!r}')


def _check_topics(robot: RobotDescription, place: str) -> None:
    types: dict[str, str] = {}
    sources: list[StateSource | CameraInput] = [*robot.state, *robot.cameras]
    for source in sources:
        known = types.setdefault(source.topic, source.type)
        if known != source.type:
            raise RobotFileError(
                f'{place}: topic {source.topic} has two types: {known} and {source.type}'
            )
    if robot.command.topic in types:
        raise RobotFileError(
            f'{place}: command: command topic {robot.command.topic} is also an input topic; use '
            'another topic'
        )


def _check_stopping(robot: RobotDescription, place: str) -> None:
    for action in robot.actions:
        if action.motion is Motion.VELOCITY and not action.low <= 0 <= action.high:
            raise RobotFileError(
                f'{place}: {action.name}: min to max must include 0, got {action.low:g} to '
                f'{action.high:g}: the robot could not stop'
            )


def _check_measured(robot: RobotDescription, place: str) -> None:
    for action, index in zip(robot.actions, measuring_indices(robot), strict=True):
        if action.motion is Motion.POSITION and index is None:
            raise RobotFileError(
                f'{place}: {action.name}: no state value measures {action.joint}; name one like '
                'the action, or list the joint once in sensor_msgs/JointState'
            )


def _check_joints(robot: RobotDescription, place: str) -> None:
    """
    Check that an action moves the joint that measures it: commands are bounded from the measured
    position, so a mismatch would make the other joint jump.
    """
    sources = [(source, field) for source in robot.state for field in source.fields]
    for action, index in zip(robot.actions, measuring_indices(robot), strict=True):
        if index is None:
            continue
        (source, field), name = sources[index], robot.own_state_names[index]
        # two arms may share joint names; the state then uses the command names
        if source.type == JOINT_STATE and action.joint not in (field, name):
            raise RobotFileError(
                f'{place}: {action.name}: joint is {action.joint}, but the state {name} that '
                f'measures it is the joint {field} of {source.topic}; both must be one joint'
            )


def _check_command(robot: RobotDescription, place: str) -> None:
    kind = robot.command.type
    if refusal := COMMAND_TYPES[kind](robot.actions):
        raise RobotFileError(f'{place}: {kind} {refusal}')


def _check_interlock(interlock: Interlock, robot: RobotDescription, place: str) -> None:
    if interlock.state not in robot.own_state_names:
        raise RobotFileError(
            f'{place}: no state {interlock.state!r}; there are {", ".join(robot.own_state_names)}'
        )
    actions = {action.name: action for action in robot.actions}
    for name, value in interlock.then.items():
        if name not in actions:
            raise RobotFileError(
                f'{place}: then: no action {name!r}; there are {", ".join(actions)}'
            )
        _check_within(actions[name], value, f'{place}: then')
        if interlock.immediate:
            _check_immediate(actions[name], robot.fps, f'{place}: immediate')


def _check_immediate(action: ActionLimit, fps: float, place: str) -> None:
    steps_alone = action.max_acceleration == inf and action.max_lead == inf
    is_redundant = action.max_velocity / fps <= action.max_step * (1 + 1e-9)
    if action.motion is Motion.POSITION and steps_alone and is_redundant:
        raise RobotFileError(
            f'{place} changes nothing for {action.name}, whose max_velocity is one max_step a '
            'control step; give a higher max_velocity, or leave it out'
        )


def _check_safe_pose(robot: RobotDescription, place: str) -> None:
    for action, value in zip(robot.actions, robot.safe_pose or (), strict=False):
        _check_within(action, value, place)
        if action.motion is Motion.VELOCITY and value:
            raise RobotFileError(
                f'{place}: {action.name} is a velocity and must be 0 in a pose, got {value:g}'
            )


def _check_within(action: ActionLimit, value: float, place: str) -> None:
    if not action.low <= value <= action.high:
        raise RobotFileError(
            f'{place}: {action.name} must be in its limits [{action.low:g}, {action.high:g}], '
            f'got {value:g}'
        )


def _check_names(robot: RobotDescription, place: str) -> None:
    cameras = tuple(camera.name for camera in robot.cameras)
    actions = tuple(action.name for action in robot.actions)
    known = {*robot.own_state_names, *cameras, *actions}
    for name in robot.rename_map:
        if name not in known:
            raise RobotFileError(
                f'{place}: no state, camera or action {name!r}; there are '
                f'{", ".join(sorted(known))}'
            )
    for names in (robot.state_names, robot.camera_names, robot.action_names):
        refuse_duplicates(names, f'{place}: after renaming')


def _check_units(robot: RobotDescription, place: str) -> None:
    known = [*robot.own_state_names, *(action.name for action in robot.actions)]
    for name in robot.units:
        if name not in known:
            near = closest_name(name, known)
            hint = f'did you mean {near}? ' if near else ''
            there = ', '.join(dict.fromkeys(known))
            raise RobotFileError(f'{place}: no state or action {name!r}; {hint}there are {there}')
    for action, index in zip(robot.actions, measuring_indices(robot), strict=True):
        unit = robot.units.get(action.name)
        if unit and unit.robot in KINDS:
            is_rate = KINDS[unit.robot][0] in RATES
            if is_rate != (action.motion is Motion.VELOCITY):
                raise RobotFileError(
                    f'{place}: {action.name} is a {action.motion.value}, and {unit.robot} is not '
                    'its unit'
                )
        if index is not None:
            _check_same_unit(robot, action.name, robot.own_state_names[index], place)


def _check_same_unit(robot: RobotDescription, action: str, state: str, place: str) -> None:
    """Check that an action and its measurement share a unit: commands are bounded from it."""
    units = [robot.units.get(name) for name in (action, state)]
    names = ['no unit' if unit is None else unit.robot for unit in units]
    if names[0] != names[1]:
        raise RobotFileError(
            f'{place}: {action} has {names[0]} and the state {state} that measures it has '
            f'{names[1]}; give both the same unit of the robot'
        )


def _check_intervention(
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
    for topic in filter(None, (device.topic, device.deadman_topic)):
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
    if device.deadman_topic == device.topic and device.type != JOY:
        raise RobotFileError(
            f'{place}: deadman: topic {device.topic} has the type {device.type}; a deadman is a '
            f'button of {JOY}'
        )
    if device.type == JOY:
        _check_axes(device, (action.name for action in actions), place)
    elif refusal := COMMAND_TYPES[device.type](actions):
        raise RobotFileError(f'{place}: {device.type} {refusal}')


def _check_axes(device: InterventionInput, actions: Iterable[str], place: str) -> None:
    known = tuple(actions)
    for name in device.axes:
        if name not in known:
            raise RobotFileError(
                f'{place}: axes: no action {name!r}; there are {", ".join(known)}'
            )
