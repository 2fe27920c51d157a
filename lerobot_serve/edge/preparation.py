"""What is worked out and put together from parameters and robot file before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
import random
import secrets
import time

from lerobot_serve.cage import sharing
from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit
from lerobot_serve.cage.start import Start
from lerobot_serve.edge.clamp_alarm import ClampAlarm
from lerobot_serve.edge.controller import Controller
from lerobot_serve.edge.exchange import Exchange
from lerobot_serve.edge.history import History
from lerobot_serve.edge.inputs import Inputs
from lerobot_serve.edge.journey import Journey
from lerobot_serve.edge.ladder import Ladder
from lerobot_serve.edge.link import Episode, Link, Pace
from lerobot_serve.edge.listener import Listener
from lerobot_serve.edge.parameters import EdgeParameters, read_tags
from lerobot_serve.edge.presence import Presence
from lerobot_serve.edge.queue.actions import ActionQueue
from lerobot_serve.edge.queue.interpolation import Interpolator
from lerobot_serve.edge.queue.latency import LatencyTracker
from lerobot_serve.edge.requester import Requester
from lerobot_serve.edge.robot.description import Robot
from lerobot_serve.edge.robot.file import load
from lerobot_serve.edge.robot.table import RobotFileError
from lerobot_serve.edge.robot.units import limits_for_policy
from lerobot_serve.edge.rungs import (
    parse_ladder,
    ramp_s,
    teardown_rungs,
)
from lerobot_serve.edge.servers import Servers
from lerobot_serve.edge.states import Connection
from lerobot_serve.edge.step import Timing
from lerobot_serve.parameters import ParameterError
from lerobot_serve.wire.executed import Executed
from lerobot_serve.wire.schema import Codec, ID_LIMIT
from lerobot_serve.wire.session import ASK_EXTENSION_BYTES_LIMIT, CameraSpec, SessionAsk

# one sample may be misread, two may be one misread twice on their way; three cost a tenth of a
# second at 30 Hz
START_SAMPLES = 3


def load_robot(path: str | Path) -> Robot:
    """Return the robot of a file. Raises ParameterError."""
    try:
        return load(Path(path))
    except RobotFileError as error:
        raise ParameterError(str(error)) from error


def pace(parameters: EdgeParameters, robot: Robot) -> Pace:
    """Return when to ask and when to give up."""
    return Pace(
        1 / robot.fps,
        parameters.buffer_time_s,
        parameters.request_timeout_s,
        parameters.degraded_after_s,
        parameters.max_offline_s,
        parameters.max_action_age_s,
        parameters.merge == 'append',
        parameters.rtc,
        parameters.execution_horizon,
        parameters.request_timeouts,
    )


def tick_s(parameters: EdgeParameters, robot: Robot) -> float:
    """Return the time between two commands."""
    return 1 / (robot.fps * parameters.interpolation)


def controller(
    parameters: EdgeParameters, robot: Robot, actions: ActionQueue, dry: Callable[[], None]
) -> Controller:
    """Return what commands the robot. Raises ParameterError."""
    step_s = tick_s(parameters, robot)
    cage = _cage(parameters, robot, step_s)
    return Controller(
        actions,
        _ladder(parameters, robot, step_s),
        cage,
        Interpolator(parameters.interpolation),
        Journey(len(robot.actions)),
        Start(cage.limits, samples=START_SAMPLES, outside_share=parameters.start_tolerance),
        Timing(
            int(1e9 * step_s),
            int(1e9 * parameters.max_action_age_s),
            int(1e9 * parameters.max_blind_s),
        ),
        dry=dry,
        releases=parameters.while_paused == 'nothing',
        alarm=ClampAlarm(
            robot.actions,
            window_steps=round(parameters.clamp_alarm_s / step_s),
            window_s=parameters.clamp_alarm_s,
        ),
    )


def _ladder(parameters: EdgeParameters, robot: Robot, step_s: float) -> Ladder:
    rungs = parse_ladder(parameters.ladder, robot, step_s=step_s)
    stop_s = ramp_s(rungs, robot, step_s)
    return Ladder(
        rungs,
        robot,
        step_s=step_s,
        resume_rows=max(1, round(parameters.resume_s * robot.fps)),
        teardown=teardown_rungs(parameters.teardown, robot, stop_s, step_s=step_s),
        calls_stop=bool(parameters.stop_service),
    )


def _cage(parameters: EdgeParameters, robot: Robot, step_s: float) -> Cage:
    try:
        return Cage(
            robot.actions,
            robot.interlocks,
            robot.own_state_names,
            step_s=step_s,
            # several commands are one action
            latch_after_trips=parameters.latch_after_trips * parameters.interpolation,
        )
    except ValueError as error:
        raise ParameterError(f'robot_file: {error}') from error


def requester(
    parameters: EdgeParameters,
    robot: Robot,
    link: Link,
    history: History,
    actions: ActionQueue,
    connection: Connection,
    executed: Callable[[], Executed],
    *,
    client_id: str,
    listener: Listener,
    presence_lease_s: float,
) -> Requester:
    """Return what asks for chunks; its first episode is that of the parameters."""
    exchange = Exchange(
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
    exchange.name_episode(Episode(parameters.task))
    servers = Servers(
        parameters.servers,
        first_backoff_s=parameters.reconnect_backoff_s,
        max_backoff_s=parameters.reconnect_max_backoff_s,
        random=random.random,
    )
    return Requester(
        link,
        exchange,
        actions,
        connection,
        servers,
        Presence(presence_lease_s),
        pace=pace(parameters, robot),
        clock=time.monotonic_ns,
    )


def pace_warnings(parameters: EdgeParameters, robot: Robot, chunk_size: int) -> list[str]:
    """Return what an operator should know about a server's chunks and this robot's pace."""
    if chunk_size > parameters.buffer_time_s * robot.fps:
        return []
    return [
        f'a chunk lasts {chunk_size / robot.fps:.2f} s and buffer_time_s is '
        f'{parameters.buffer_time_s:g}: the server will be asked without a pause'
    ]


def asking(
    settings: Callable[[], EdgeParameters],
    robot: Robot,
    *,
    client_id: str,
    task: Callable[[], str],
) -> Callable[[int, str], SessionAsk]:
    """Return what makes the ask of a session of this number and reply topic."""
    # tells this process from another one of the same name
    instance = secrets.randbits(63)
    return lambda epoch, reply_topic: session_ask(
        settings(),
        robot,
        client_id=client_id,
        instance=instance,
        epoch=epoch,
        reply_topic=reply_topic,
        task=task(),
    )


def session_ask(
    parameters: EdgeParameters,
    robot: Robot,
    *,
    client_id: str,
    instance: int,
    epoch: int,
    reply_topic: str,
    task: str,
) -> SessionAsk:
    """Return what the robot asks of a server."""
    return SessionAsk(
        client_id,
        instance,
        epoch,
        reply_topic,
        robot.state_names,
        robot.action_names,
        tuple(CameraSpec(name) for name in robot.camera_names),
        robot.fps,
        robot_type=robot.name,
        policy=parameters.policy,
        task=task,
        wants_rtc=parameters.rtc,
        rtc_execution_horizon=parameters.execution_horizon,
        codec=Codec[parameters.codec.upper()],
        # later, the request was given up or the first action is too old to be played
        answer_within_s=min(parameters.request_timeout_s, parameters.max_action_age_s),
        tags=read_tags(parameters.tags),
        extensions=shared_limits(parameters, robot),
    )


def shared_limits(parameters: EdgeParameters, robot: Robot) -> tuple[tuple[str, bytes], ...]:
    """Return the limits as an extension of an ask, in the policy's names and units."""
    shared = _encoded(parameters, robot, limits_for_policy(robot.actions, robot.action_units))
    # a robot of hundreds of actions is served without
    return ((sharing.KEY, shared),) if len(shared) <= ASK_EXTENSION_BYTES_LIMIT else ()


def limits(parameters: EdgeParameters, robot: Robot) -> bytes:
    """
    Return what the cage keeps to, as JSON: in the robot's units, as are the commands that a trace
    holds, under the policy's names of the actions.
    """
    return _encoded(parameters, robot, robot.actions)


def _encoded(parameters: EdgeParameters, robot: Robot, limits: Iterable[ActionLimit]) -> bytes:
    named = zip(limits, robot.action_names, strict=True)
    actions = [replace(action, name=name) for action, name in named]
    at_once = {name for lock in robot.interlocks if lock.immediate for name in lock.then}
    immediate = [robot.rename_map.get(name, name) for name in sorted(at_once)]
    return sharing.encode_limits(actions, tick_s(parameters, robot), immediate)


def state_inputs(robot: Robot) -> tuple[str, ...]:
    """Return how the inputs of the state are called, in order."""
    return tuple(f'state from {source.topic}' for source in robot.state)


def inputs(robot: Robot) -> dict[str, tuple[str, str, float]]:
    """Return name, topic, type and bound of the age of every input."""
    states = zip(state_inputs(robot), robot.state, strict=True)
    given = [*states, *((camera.name, camera) for camera in robot.cameras)]
    return {name: (one.topic, one.type, one.max_age_s) for name, one in given}


def newest(robot: Robot, resolve: Callable[[str], str]) -> Inputs:
    """Return what keeps the newest of every input; `resolve` gives a topic its full name."""
    topics = {name: resolve(topic) for name, (topic, _, _) in inputs(robot).items()}
    return Inputs(max_ages_ns(robot), topics)


def max_ages_ns(robot: Robot) -> dict[str, int]:
    """Return the bound of every input by its name."""
    return {name: int(age_s * 1e9) for name, (_, _, age_s) in inputs(robot).items()}


def name_client(client_id: str, namespace: str) -> str:
    """Return the robot's name. Raises ParameterError."""
    name = client_id or namespace.strip('/').replace('/', '.')
    if not name:
        raise ParameterError('client_id is empty and the node has no namespace; name this robot')
    if len(name.encode()) > ID_LIMIT:
        raise ParameterError(f'client_id may have {ID_LIMIT} bytes, {name[:20]!r}... has more')
    return name
