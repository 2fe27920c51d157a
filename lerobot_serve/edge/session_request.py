# SPDX-License-Identifier: Apache-2.0
"""Builds the session request of a robot, and its limits for servers and traces. Any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lerobot_serve.cage import limits_encoding
from lerobot_serve.cage.description import ActionLimit
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import CameraSpec, Extension, OpenSessionRequest
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.services.session import SESSION_EXTENSION_BYTES_LIMIT
from lerobot_serve.edge.parameters import EdgeParameters, read_tags
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.units import limits_for_policy


def make_session_request(
    parameters: EdgeParameters,
    robot: RobotDescription,
    *,
    client_id: str,
    instance: int,
    epoch: int,
    task: str,
    cameras: tuple[CameraSpec, ...] | None = None,
) -> OpenSessionRequest:
    """
    Build the session request of a robot. `instance` distinguishes this process from another one
    with the same name; `cameras` have their sizes once those are known.
    """
    return OpenSessionRequest(
        schema_version=SCHEMA_VERSION,
        client_id=client_id,
        instance=instance,
        session_epoch=epoch,
        state_names=robot.state_names,
        action_names=robot.action_names,
        cameras=cameras or tuple(CameraSpec(name) for name in robot.camera_names),
        fps=robot.fps,
        robot_type=robot.name,
        policy=parameters.required_policy,
        task=task,
        wants_rtc=parameters.rtc,
        rtc_execution_horizon=parameters.execution_horizon,
        codec=Codec.named(parameters.codec),
        # a later reply is useless: the request has timed out or its first action is stale
        reply_deadline_s=min(parameters.request_timeout_s, parameters.max_action_age_s),
        tags=read_tags(parameters.tags),
        extensions=limits_extension(parameters, robot),
    )


def chunk_rate_warnings(
    parameters: EdgeParameters, robot: RobotDescription, chunk_size: int
) -> list[str]:
    """Return warnings about the chunk length of a server at this robot's rate."""
    if chunk_size > parameters.request_threshold_s * robot.fps:
        return []
    return [
        f'a chunk lasts {chunk_size / robot.fps:.2f} s and request_threshold_s is '
        f'{parameters.request_threshold_s:g}: requests will follow each other without a pause'
    ]


def limits_extension(parameters: EdgeParameters, robot: RobotDescription) -> tuple[Extension, ...]:
    """Return the limits as a session extension, in the policy's names and units."""
    shared = _encoded(parameters, robot, limits_for_policy(robot.actions, robot.action_units))
    # omitted for a robot with hundreds of actions
    return (
        (Extension(limits_encoding.EXTENSION_KEY, shared),)
        if len(shared) <= SESSION_EXTENSION_BYTES_LIMIT
        else ()
    )


def encode_robot_limits(parameters: EdgeParameters, robot: RobotDescription) -> bytes:
    """
    Return the cage limits as JSON for the trace: in the robot's units, as the recorded commands,
    and under the policy's action names.
    """
    return _encoded(parameters, robot, robot.actions)


def _encoded(
    parameters: EdgeParameters, robot: RobotDescription, limits: Iterable[ActionLimit]
) -> bytes:
    named = zip(limits, robot.action_names, strict=True)
    actions = [replace(action, name=name) for action, name in named]
    at_once = {name for lock in robot.interlocks if lock.immediate for name in lock.then}
    immediate = [robot.rename_map.get(name, name) for name in sorted(at_once)]
    step_s = parameters.command_period_s(robot.fps)
    return limits_encoding.encode_limits(actions, step_s, immediate)
