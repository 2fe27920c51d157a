"""
The node edge_controller: inputs in, requests out, chunks in, commands out.

Four threads: the executor and `answers` deposit what arrives, `request` asks for chunks, `tick`
commands the robot. The process holds no torch, so that nothing but these competes for the
interpreter.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
import secrets
import time

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.edge import robot as robot_file
from lerobot_serve.edge.cage import Cage
from lerobot_serve.edge.commands import joint_trajectory
from lerobot_serve.edge.controller import Controller, Executed
from lerobot_serve.edge.frames import encode_frames
from lerobot_serve.edge.history import History, Moment
from lerobot_serve.edge.inputs import Inputs, NotReady
from lerobot_serve.edge.link import Agreement
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.preparation import (
    check_server,
    JOINTS,
    max_ages_ns,
    name_client,
    pace,
    pace_warnings,
    session_ask,
    topics,
)
from lerobot_serve.edge.queue import ActionQueue
from lerobot_serve.edge.reports import edge_state, executed_action
from lerobot_serve.edge.requester import Requester
from lerobot_serve.ros import inputs as ros_inputs
from lerobot_serve.ros import qos
from lerobot_serve.ros.beat import Beat
from lerobot_serve.ros.lane import Lane
from lerobot_serve.ros.parameter_server import ParameterServer
from lerobot_serve.ros.runtime import run, Runtime, UserError
from lerobot_serve.ros.session_client import SessionClient
from lerobot_serve.ros.share import shared_file
from lerobot_serve.wire.content import Image as WireImage
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.images import ImagePool
from lerobot_serve.wire.schema import Codec
from lerobot_serve.wire.session import SessionAsk, Unreachable
from lerobot_serve_interfaces.msg import ActionChunk, EdgeState, ExecutedAction
from lerobot_serve_interfaces.srv import ResetEpisode

OPEN_TIMEOUT_S = 10.0
RESET_TIMEOUT_S = 1.0
WIRING_TIMEOUT_S = 3.0


class EdgeController(Node):
    """See the module. Built in the main thread; each method says whose it is."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('edge_controller', context=runtime.context)
        self._settings = ParameterServer(self, EdgeParameters)
        self._settings.on_change(self._change_pace)
        parameters = self._settings.current
        self.robot = load_robot(parameters.robot_file)
        self.client_id = name_client(parameters.client_id, self.get_namespace())
        self._actions = ActionQueue()
        self._controller = Controller(
            self._actions,
            Cage(self.robot.actions),
            max_action_age_ns=int(parameters.max_action_age_s * 1e9),
        )
        self._inputs = Inputs(
            max_ages_ns(self.robot),
            {name: self.resolve_topic_name(topic) for name, topic in topics(self.robot).items()},
        )
        self._history = History(self._inputs)
        self._images = ImagePool(parameters.image_threads)
        self._chunks = Lane(self, ActionChunk, '~/action_chunk', qos.ACTION_CHUNK, self._on_chunk)
        self._client = SessionClient(
            self,
            check_server(parameters.server),
            lifespan_s=parameters.max_action_age_s,
            stop=runtime.stop,
        )
        self._requester = Requester(
            self,
            self._history,
            self._actions,
            client_id=self.client_id,
            task=parameters.task,
            action_count=len(self.robot.actions),
            first_epoch=secrets.randbits(32),
            pace=pace(parameters, self.robot),
            clock=time.monotonic_ns,
        )
        self._instance = secrets.randbits(63)
        self._ask: SessionAsk | None = None
        self._beat = Beat(int(1e9 / self.robot.fps))
        self._connect_robot()
        self._offer(parameters)
        runtime.thread('request', self._run_requests, self._requester.close)
        runtime.thread('answers', partial(self._chunks.run, runtime.stop), self._chunks.wake)
        runtime.thread('tick', partial(self._run_ticks, runtime))
        self.get_logger().info(
            f'{self.client_id} ({self.robot.name}) at {self.robot.fps:g} Hz asks '
            f'{parameters.server}'
        )

    def _connect_robot(self) -> None:
        """Subscribe to the robot's inputs and publish its commands."""
        for name, topic in topics(self.robot).items():
            self.create_subscription(
                JointState if name == JOINTS else Image,
                topic,
                partial(self._on_input, name),
                qos.SENSOR,
                raw=True,
                qos_overriding_options=qos.OVERRIDABLE,
            )
        self._commands = self.create_publisher(
            JointTrajectory,
            self.robot.command_topic,
            qos.COMMAND,
            qos_overriding_options=qos.OVERRIDABLE,
        )

    def _offer(self, parameters: EdgeParameters) -> None:
        """Create what operators and recorders see."""
        self._state_publisher = self.create_publisher(
            EdgeState, '~/state', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        self._executed_publisher = self.create_publisher(
            ExecutedAction,
            '~/executed_action',
            qos.EXECUTED_ACTION,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        self.create_service(Trigger, '~/reset', self._on_reset)
        self.create_timer(parameters.status_period_s, self._on_timer)

    # executor thread

    def _on_input(self, name: str, raw: bytes) -> None:
        self._inputs.deposit(name, raw, time.monotonic_ns())

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._requester.reset()
        response.success, response.message = True, 'the next episode begins'
        return response

    def _on_timer(self) -> None:
        self._state_publisher.publish(self._state())

    def _change_pace(self, parameters: EdgeParameters) -> None:
        self._requester.pace = pace(parameters, self.robot)

    # answers thread

    def _on_chunk(self, raw: bytes) -> None:
        self._requester.on_chunk(raw)

    # request thread: the requester's Link

    def _run_requests(self) -> None:
        self._requester.run()
        if self._ask and self._requester.progress.connected:
            # a server that is gone closes the idle session by itself
            with contextlib.suppress(Unreachable):
                self._client.close(self._ask, RESET_TIMEOUT_S)
        self._images.close()

    def open_session(self, epoch: int) -> Agreement:
        """Return what the server asks of requests. Raises Refused or Unreachable."""
        parameters = self._settings.current
        self._ask = session_ask(
            parameters,
            self.robot,
            client_id=self.client_id,
            instance=self._instance,
            epoch=epoch,
            reply_topic=self._chunks.topic_name,
        )
        reply = self._client.open(self._ask, OPEN_TIMEOUT_S)
        if not self._client.wait_until_wired(self._chunks.publisher_count, WIRING_TIMEOUT_S):
            self.get_logger().warning(
                f'{self._client.server} answers, but its topics were not found within '
                f'{WIRING_TIMEOUT_S:g} s; first requests may be lost'
            )
        for warning in (*reply.warnings, *pace_warnings(parameters, self.robot, reply.chunk_size)):
            self.get_logger().warning(warning)
        self.get_logger().info(
            f'session {reply.session_id} with {reply.policy}, observations a request: '
            f'{reply.observation_steps}'
        )
        return Agreement(
            reply.schema_version, reply.observation_steps, reply.observation_stride_steps
        )

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Tell the server that an episode begins."""
        request = ResetEpisode.Request(
            client_id=self.client_id, session_epoch=epoch, episode=episode, episode_id=episode_id
        )
        try:
            self._client.reset(request, RESET_TIMEOUT_S)
        except Unreachable as error:
            # the first request of the episode says the same
            self.get_logger().warning(f'reset was not acknowledged: {error}')

    def observe(self, moments: tuple[Moment, ...]) -> tuple[np.ndarray, tuple[WireImage, ...]]:
        """Return states and encoded images. Raises Malformed or Unencodable."""
        joints, parameters = self.robot.state.names, self._settings.current
        states = [ros_inputs.joint_positions(m.snapshot.values[JOINTS], joints) for m in moments]
        images = encode_frames(
            moments,
            tuple(camera.name for camera in self.robot.cameras),
            self._images,
            Codec[parameters.codec.upper()],
            parameters.jpeg_quality,
            opened=ros_inputs.frame,
        )
        return np.stack(states), images

    def send(self, raw: bytes) -> None:
        """Publish a request."""
        self._client.send(raw)

    # tick thread

    def _run_ticks(self, runtime: Runtime) -> None:
        while self._beat.wait(runtime.stop):
            now_ns = time.monotonic_ns()
            self._history.tick(self._beat.beats + self._beat.missed, now_ns)
            executed = self._controller.step(now_ns, self._position)
            if executed:
                self._command(executed)

    def _position(self) -> np.ndarray | None:
        """Return where the robot is, in action order; None when that is not known."""
        try:
            raw = self._inputs.newest(JOINTS, time.monotonic_ns())
            return ros_inputs.joint_positions(raw, self.robot.action_joints).astype(np.float64)
        except (NotReady, Malformed):
            return None

    def _command(self, executed: Executed) -> None:
        command = executed.judgement.command
        if command is not None:
            self._commands.publish(joint_trajectory(command, self.robot))
        self._executed_publisher.publish(
            executed_action(
                executed,
                stamp=self.get_clock().now().to_msg(),
                tick=self._beat.beats,
                client_id=self.client_id,
            )
        )

    # executor thread

    def _state(self) -> EdgeState:
        return edge_state(
            self._requester,
            self._controller,
            self._actions,
            self._beat,
            stamp=self.get_clock().now().to_msg(),
            client_id=self.client_id,
            server=self._client.server,
            task=self._settings.current.task,
            fps=self.robot.fps,
        )


def load_robot(path: str) -> robot_file.Robot:
    """Return the robot. Raises UserError."""
    try:
        return robot_file.load(Path(path) if path else shared_file('config/robots/sim_arm.yaml'))
    except robot_file.RobotFileError as error:
        raise UserError(str(error)) from error


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `edge_controller`."""
    return run(EdgeController, arguments)


if __name__ == '__main__':
    raise SystemExit(main())
