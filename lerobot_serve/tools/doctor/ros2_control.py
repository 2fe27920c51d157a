# SPDX-License-Identifier: Apache-2.0
"""Checks ros2_control for defaults that keep a robot moving without commands. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, skipped, warning

ENFORCE = 'enforce_command_limits'
# names of the command timeout, which depend on the controller
TIMEOUTS = ('cmd_timeout', 'command_timeout', 'cmd_vel_timeout', 'reference_timeout')
# of a JointTrajectoryController: start of each new trajectory
INTERPOLATE = 'interpolate_from_desired_state'
JOINTS = 'joints'
# parameters that the doctor reads of a controller
QUERIED_PARAMETERS = (*TIMEOUTS, INTERPOLATE, JOINTS)
TRAJECTORY, ARRAY = 'trajectory_msgs/JointTrajectory', 'std_msgs/Float64MultiArray'
# longest safe motion without commands
TIMEOUT_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """One controller: its QUERIED_PARAMETERS, or the error of the query."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    subscribes_commands: bool = False
    error: str = ''


@dataclass(frozen=True, slots=True)
class ControllerManagerFacts:
    """One controller_manager; `enforces` is None without this parameter."""

    name: str
    enforces: bool | None = None
    controllers: tuple[ControllerFacts, ...] = ()
    error: str = ''


def check_controllers(
    managers: list[ControllerManagerFacts], robot: RobotDescription | None
) -> list[Finding]:
    """Check all controllers; `robot` defines whether commands are velocities."""
    if not managers:
        text = 'no controller_manager found; ros2_control not checked'
        return [skipped('controller_manager', text)]
    is_velocity = robot is None or any(a.motion is Motion.VELOCITY for a in robot.actions)
    found = []
    for manager in managers:
        found.append(_manager(manager))
        for controller in manager.controllers:
            found += _controller(
                controller, manager, known=robot is not None, is_velocity=is_velocity
            )
            if robot is not None and controller.subscribes_commands:
                found += [*_interpolation(controller, robot), *_joints(controller, robot)]
    return found


def _interpolation(controller: ControllerFacts, robot: RobotDescription) -> list[Finding]:
    """Check the start of the trajectories that an edge sends in every step."""
    begins = controller.parameters.get(INTERPOLATE)
    if robot.command.type != TRAJECTORY or type(begins) is not bool:
        return []
    name = f'{controller.name} {INTERPOLATE}'
    if begins:
        return [ok(name, 'true: each command continues the previous one')]
    return [
        warning(
            name,
            'false, the default: each command begins at the measured position, so that the arm '
            'lags behind and sags under its load',
            f'set {INTERPOLATE}: true in the ros__parameters of {controller.name} and start it '
            'again; max_lead in the robot file still bounds the lead of a command',
        )
    ]


def _joints(controller: ControllerFacts, robot: RobotDescription) -> list[Finding]:
    """Check that a controller moves the joints of the robot file, for arrays in its order."""
    joints, robot_joints = controller.parameters.get(JOINTS), list(robot.action_joints)
    if not isinstance(joints, list | tuple) or robot.command.type not in (TRAJECTORY, ARRAY):
        return []
    name, controller_joints = f'{controller.name} {JOINTS}', [str(joint) for joint in joints]
    if robot.command.type == ARRAY and controller_joints == robot_joints:
        return [ok(name, 'the joints of the robot file, in its order')]
    if robot.command.type == TRAJECTORY and sorted(controller_joints) == sorted(robot_joints):
        return [ok(name, 'the joints of the robot file')]
    order = ' in this order, as an array has no names' if robot.command.type == ARRAY else ''
    return [
        failure(
            name,
            f'{", ".join(controller_joints)}; the robot file commands {", ".join(robot_joints)}',
            f'both must be the same joints{order}: correct joint of the actions, or {JOINTS} of '
            f'{controller.name}',
        )
    ]


def _manager(manager: ControllerManagerFacts) -> Finding:
    name = f'{manager.name} {ENFORCE}'
    if manager.error:
        return warning(
            name,
            f'unknown: {manager.error}',
            'check whether the node hangs, then run doctor again',
        )
    if manager.enforces is None:
        return warning(
            name,
            'this controller_manager has no such parameter: limits of the URDF are not enforced',
            'update ros2_control, or enforce limits in the hardware; the robot file has its own',
        )
    if manager.enforces:
        return ok(name, 'true: commands are limited to the limits of the URDF')
    return failure(
        name,
        'false, the default of Jazzy: a command outside the limits of the URDF reaches the motors',
        f'set {ENFORCE}: true in the ros__parameters of {manager.name} and start it again',
    )


def _controller(
    controller: ControllerFacts, manager: ControllerManagerFacts, *, known: bool, is_velocity: bool
) -> list[Finding]:
    """
    Check whether the robot stops without commands. When the robot is `known`, only a subscriber of
    its velocity commands can keep it moving: a position is held.
    """
    name = controller.name
    if controller.error:
        text = f'parameters unknown: {controller.error}'
        return [warning(name, text, 'check whether the node hangs, then run doctor again')]
    given = {key: controller.parameters[key] for key in TIMEOUTS if key in controller.parameters}
    runs_on = is_velocity and (controller.subscribes_commands or not known)
    if not given:
        return _without_timeout(controller) if controller.subscribes_commands and runs_on else []
    found = []
    for key, value in given.items():
        found.append(_timeout(f'{name} {key}', key, value, runs_on=runs_on, node=name))
    return found


def _without_timeout(controller: ControllerFacts) -> list[Finding]:
    return [
        warning(
            controller.name,
            'subscribes to velocities and has no timeout: the last command may continue forever',
            f'use a controller with one of {", ".join(TIMEOUTS)}, or make sure that the hardware '
            'stops by itself',
        )
    ]


def _timeout(name: str, key: str, value: Any, *, runs_on: bool, node: str) -> Finding:
    if type(value) not in (int, float) or isnan(value):
        return warning(name, f'{value!r} is not a duration', f'set {key}: 0.5 of {node}')
    if 0 < value <= TIMEOUT_LIMIT_S:
        return ok(name, f'{value:g} s: the robot stops after this time without a command')
    how = f'set {key}: 0.5 (above a few control steps) in the ros__parameters of {node}'
    if value > TIMEOUT_LIMIT_S:
        text = f'{value:g} s: the robot keeps moving for this time without a command'
        return warning(name, text, how)
    text = f'{value:g}: the robot never stops without a command'
    return failure(name, text, how) if runs_on else warning(name, text, how)
