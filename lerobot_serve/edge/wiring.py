# SPDX-License-Identifier: Apache-2.0
"""Build the parts of the edge controller from its parameters and robot file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
import random
import secrets
import time

from lerobot_serve.cage import limits_encoding
from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit
from lerobot_serve.cage.start_position import StartPosition
from lerobot_serve.edge.control.clamp_alarm import ClampAlarm
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.executed_log import ExecutedActionLog
from lerobot_serve.edge.control.step import StepTiming
from lerobot_serve.edge.fallback.ladder import Ladder
from lerobot_serve.edge.fallback.rungs import parse_ladder, ramp_s, teardown_rungs
from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.inputs.latest import LatestInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters, read_tags
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.queue.interpolation import Interpolator
from lerobot_serve.edge.queue.latency import LatencyTracker
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file import load
from lerobot_serve.edge.robot.units import limits_for_policy
from lerobot_serve.edge.robot.yaml_mapping import RobotFileError
from lerobot_serve.edge.session.connection import Connection
from lerobot_serve.edge.session.pipeline import RequestPipeline
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.server_liveliness import ServerLiveliness
from lerobot_serve.edge.session.servers import ServerSelection
from lerobot_serve.edge.session.transport import EpisodeRequest, RequestSettings, Transport
from lerobot_serve.parameters import ParameterError
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.schema import Codec, ID_LIMIT
from lerobot_serve.wire.session import CameraSpec, SESSION_EXTENSION_BYTES_LIMIT, SessionRequest

# one or two samples may be misread; three cost a tenth of a second at 30 Hz
START_SAMPLES = 3


def load_robot(path: str | Path) -> RobotDescription:
    """Load the robot file. Raises ParameterError."""
    try:
        return load(Path(path))
    except RobotFileError as error:
        raise ParameterError(str(error)) from error


def request_settings(parameters: EdgeParameters, robot: RobotDescription) -> RequestSettings:
    """Return the request timing and merge settings."""
    return RequestSettings(
        1 / robot.fps,
        parameters.request_threshold_s,
        parameters.request_timeout_s,
        parameters.degraded_after_s,
        parameters.max_offline_s,
        parameters.max_action_age_s,
        parameters.merge_mode == 'append',
        parameters.rtc,
        parameters.execution_horizon,
        parameters.max_consecutive_timeouts,
    )


def command_period_s(parameters: EdgeParameters, robot: RobotDescription) -> float:
    """Return the time between two commands [s]."""
    return 1 / (robot.fps * parameters.interpolation_multiplier)


def make_controller(
    parameters: EdgeParameters,
    robot: RobotDescription,
    actions: ActionQueue,
    dry: Callable[[], None],
) -> Controller:
    """Build the controller with its cage and ladder. Raises ParameterError."""
    step_s = command_period_s(parameters, robot)
    cage = _cage(parameters, robot, step_s)
    return Controller(
        actions,
        _ladder(parameters, robot, step_s),
        cage,
        Interpolator(parameters.interpolation_multiplier),
        ExecutedActionLog(len(robot.actions)),
        StartPosition(
            cage.limits, samples=START_SAMPLES, tolerance_share=parameters.start_tolerance
        ),
        StepTiming(
            int(1e9 * step_s),
            int(1e9 * parameters.max_action_age_s),
            int(1e9 * parameters.state_timeout_s),
        ),
        dry=dry,
        releases=parameters.while_paused == 'no_command',
        alarm=ClampAlarm(
            robot.actions,
            window_steps=round(parameters.clamp_alarm_window_s / step_s),
            window_s=parameters.clamp_alarm_window_s,
        ),
    )


def _ladder(parameters: EdgeParameters, robot: RobotDescription, step_s: float) -> Ladder:
    rungs = parse_ladder(parameters.fallback_ladder, robot, step_s=step_s)
    stop_s = ramp_s(rungs, robot, step_s)
    return Ladder(
        rungs,
        robot,
        step_s=step_s,
        resume_rows=max(1, round(parameters.resume_threshold_s * robot.fps)),
        teardown=teardown_rungs(parameters.teardown, robot, stop_s, step_s=step_s),
        has_stop_service=bool(parameters.stop_service),
    )


def _cage(parameters: EdgeParameters, robot: RobotDescription, step_s: float) -> Cage:
    try:
        return Cage(
            robot.actions,
            robot.interlocks,
            robot.own_state_names,
            step_s=step_s,
            # one action is several commands
            latch_after_trips=parameters.latch_after_trips * parameters.interpolation_multiplier,
        )
    except ValueError as error:
        raise ParameterError(f'robot_file: {error}') from error


def make_requester(
    parameters: EdgeParameters,
    robot: RobotDescription,
    link: Transport,
    history: ObservationHistory,
    actions: ActionQueue,
    connection: Connection,
    executed: Callable[[], ExecutionReport],
    *,
    client_id: str,
    listener: EdgeListener,
    presence_lease_s: float,
) -> Requester:
    """Build the requester; its first episode has the task of the parameters."""
    exchange = RequestPipeline(
        link,
        history,
        actions,
        LatencyTracker(),
        executed,
        client_id=client_id,
        action_count=len(robot.actions),
        first_epoch=secrets.randbits(32),
        clock=time.monotonic_ns,
        listener=listener,
        units=robot.action_units,
    )
    exchange.name_episode(EpisodeRequest(parameters.task))
    servers = ServerSelection(
        parameters.servers,
        first_backoff_s=parameters.reconnect_initial_backoff_s,
        max_backoff_s=parameters.reconnect_max_backoff_s,
        random=random.random,
    )
    return Requester(
        link,
        exchange,
        actions,
        connection,
        servers,
        ServerLiveliness(presence_lease_s),
        pace=request_settings(parameters, robot),
        clock=time.monotonic_ns,
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


def session_request_factory(
    settings: Callable[[], EdgeParameters],
    robot: RobotDescription,
    *,
    client_id: str,
    task: Callable[[], str],
) -> Callable[[int, str], SessionRequest]:
    """Return a function that builds a session request from an epoch and a reply topic."""
    # distinguishes this process from another one with the same name
    instance = secrets.randbits(63)
    return lambda epoch, reply_topic: make_session_request(
        settings(),
        robot,
        client_id=client_id,
        instance=instance,
        epoch=epoch,
        reply_topic=reply_topic,
        task=task(),
    )


def make_session_request(
    parameters: EdgeParameters,
    robot: RobotDescription,
    *,
    client_id: str,
    instance: int,
    epoch: int,
    reply_topic: str,
    task: str,
) -> SessionRequest:
    """Build the session request of this robot."""
    return SessionRequest(
        client_id,
        instance,
        epoch,
        reply_topic,
        robot.state_names,
        robot.action_names,
        tuple(CameraSpec(name) for name in robot.camera_names),
        robot.fps,
        robot_type=robot.name,
        policy=parameters.required_policy,
        task=task,
        wants_rtc=parameters.rtc,
        rtc_execution_horizon=parameters.execution_horizon,
        codec=Codec[parameters.codec.upper()],
        # later the request has timed out, or its first action is stale
        reply_deadline_s=min(parameters.request_timeout_s, parameters.max_action_age_s),
        tags=read_tags(parameters.tags),
        extensions=limits_extension(parameters, robot),
    )


def limits_extension(
    parameters: EdgeParameters, robot: RobotDescription
) -> tuple[tuple[str, bytes], ...]:
    """Return the limits as a session extension, in the policy's names and units."""
    shared = _encoded(parameters, robot, limits_for_policy(robot.actions, robot.action_units))
    # omitted for a robot with hundreds of actions
    return (
        ((limits_encoding.EXTENSION_KEY, shared),)
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
    return limits_encoding.encode_limits(actions, command_period_s(parameters, robot), immediate)


def state_input_names(robot: RobotDescription) -> tuple[str, ...]:
    """Return the names of the state inputs, in order."""
    return tuple(f'state from {source.topic}' for source in robot.state)


def input_topics(robot: RobotDescription) -> dict[str, tuple[str, str, float]]:
    """Return topic, type and maximum age [s] of each input, by name."""
    states = zip(state_input_names(robot), robot.state, strict=True)
    given = [*states, *((camera.name, camera) for camera in robot.cameras)]
    return {name: (one.topic, one.type, one.max_age_s) for name, one in given}


def make_latest_inputs(robot: RobotDescription, resolve: Callable[[str], str]) -> LatestInputs:
    """Build the store of the latest inputs; `resolve` returns the full name of a topic."""
    topics = {name: resolve(topic) for name, (topic, _, _) in input_topics(robot).items()}
    return LatestInputs(input_max_ages_ns(robot), topics)


def input_max_ages_ns(robot: RobotDescription) -> dict[str, int]:
    """Return the maximum age of each input, by name [ns]."""
    return {name: int(age_s * 1e9) for name, (_, _, age_s) in input_topics(robot).items()}


def resolve_client_id(client_id: str, namespace: str) -> str:
    """Return the client_id of this robot. Raises ParameterError."""
    name = client_id or namespace.strip('/').replace('/', '.')
    if not name:
        raise ParameterError('client_id is empty and the node has no namespace; set one of them')
    if len(name.encode()) > ID_LIMIT:
        raise ParameterError(f'client_id must have at most {ID_LIMIT} bytes, got {name[:20]!r}...')
    return name
