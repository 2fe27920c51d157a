"""What is worked out from parameters and robot file before anything runs. Pure functions."""

from __future__ import annotations

from lerobot_serve.edge.link import Pace
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot import Robot
from lerobot_serve.parameters import ParameterError
from lerobot_serve.wire.names import is_topic
from lerobot_serve.wire.schema import Codec, ID_LIMIT
from lerobot_serve.wire.session import CameraSpec, SessionAsk

JOINTS = 'joint state'


def pace(parameters: EdgeParameters, robot: Robot) -> Pace:
    """Return when to ask and when to give up."""
    return Pace(
        1 / robot.fps,
        parameters.buffer_time_s,
        parameters.request_timeout_s,
        parameters.reconnect_backoff_s,
        parameters.merge == 'append',
    )


def pace_warnings(parameters: EdgeParameters, robot: Robot, chunk_size: int) -> list[str]:
    """Return what an operator should know about a server's chunks and this robot's pace."""
    if chunk_size > parameters.buffer_time_s * robot.fps:
        return []
    return [
        f'a chunk lasts {chunk_size / robot.fps:.2f} s and buffer_time_s is '
        f'{parameters.buffer_time_s:g}: the server will be asked without a pause'
    ]


def session_ask(
    parameters: EdgeParameters,
    robot: Robot,
    *,
    client_id: str,
    instance: int,
    epoch: int,
    reply_topic: str,
) -> SessionAsk:
    """Return what the robot asks of a server."""
    return SessionAsk(
        client_id,
        instance,
        epoch,
        reply_topic,
        robot.state_names,
        robot.action_names,
        tuple(CameraSpec(camera.name) for camera in robot.cameras),
        robot.fps,
        robot_type=robot.name,
        policy=parameters.policy,
        task=parameters.task,
        codec=Codec[parameters.codec.upper()],
        # later, the request was given up or the first action is too old to be played
        answer_within_s=min(parameters.request_timeout_s, parameters.max_action_age_s),
    )


def topics(robot: Robot) -> dict[str, str]:
    """Return the topic of every input by its name, as the robot file has it."""
    return {JOINTS: robot.state.topic, **{c.name: c.topic for c in robot.cameras}}


def max_ages_ns(robot: Robot) -> dict[str, int]:
    """Return the bound of every input by its name."""
    ages_s = {JOINTS: robot.state.max_age_s, **{c.name: c.max_age_s for c in robot.cameras}}
    return {name: int(age_s * 1e9) for name, age_s in ages_s.items()}


def name_client(client_id: str, namespace: str) -> str:
    """Return the robot's name. Raises ParameterError."""
    name = client_id or namespace.strip('/').replace('/', '.')
    if not name:
        raise ParameterError('client_id is empty and the node has no namespace; name this robot')
    if len(name.encode()) > ID_LIMIT:
        raise ParameterError(f'client_id may have {ID_LIMIT} bytes, {name[:20]!r}... has more')
    return name


def check_server(server: str) -> str:
    """Return the server's name. Raises ParameterError."""
    if not is_topic(server):
        raise ParameterError(
            f'server must be the full name of a node like /policy_server, got {server!r}'
        )
    return server
