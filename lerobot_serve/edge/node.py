# SPDX-License-Identifier: Apache-2.0
"""
The node edge_controller: inputs in, requests out, chunks in, commands out.

Four threads: the executor and `answers` deposit what arrives, `request` asks for chunks, `tick`
commands the robot. A fifth, `trace`, writes the trace if one is configured. The process imports no
torch, so that only these threads compete for the interpreter.
"""

from __future__ import annotations

from functools import partial
import threading
import time

from diagnostic_msgs.msg import DiagnosticArray
import numpy as np

from lerobot_serve.edge import wiring
from lerobot_serve.edge.control import command_conflict
from lerobot_serve.edge.control.command_conflict import ConflictAction, OtherPublisher, Own
from lerobot_serve.edge.control.loop import ControlLoop, StateReader
from lerobot_serve.edge.control.operator_control import OperatorControl, ServiceReply
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.episodes.runner import EpisodeRunner
from lerobot_serve.edge.inputs.frozen_cameras import FrozenCameraDetector
from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.inputs.monitor import InputMonitor
from lerobot_serve.edge.observability import metrics, reports
from lerobot_serve.edge.observability.change_log import ChangeLog
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.observability.not_commanded import NotCommandedWarning
from lerobot_serve.edge.observability.reports import EdgeView
from lerobot_serve.edge.observability.trace_recorder import EdgeTraceRecorder, make_edge_recorder
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.queue.delay_rules import DELAY_RULES
from lerobot_serve.edge.robot.command_messages import command_message, COMMAND_TYPES
from lerobot_serve.edge.ros import sensor_messages as ros_inputs
from lerobot_serve.edge.ros.command_publishers import CommandTopicPublishers
from lerobot_serve.edge.ros.reply_subscriptions import ReplySubscriptions
from lerobot_serve.edge.ros.run_episode_action import RunEpisodeAction
from lerobot_serve.edge.ros.stop_service import StopService
from lerobot_serve.edge.session.connection import Connection, ConnectionChange, ConnectionEvent
from lerobot_serve.edge.session.policy_server_transport import PolicyServerTransport
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.transport import EpisodeRequest
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.node.fixed_rate_loop import FixedRateLoop
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.node.trigger_services import create_trigger_services
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run, UserError
from lerobot_serve.ros.topics.checked_subscription import create_checked_subscription
from lerobot_serve.ros.topics.dedicated_subscription import LivelinessStatus
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction

# period of the search for other edge controllers
CONFLICT_CHECK_PERIOD_S = 0.2


class EdgeController(SteadyClockNode):
    """
    Wires the edge controller to ROS. The main thread builds it; sections name the calling thread.
    """

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('edge_controller', context=runtime.context)
        self._settings = NodeParameters(self, EdgeParameters)
        self._settings.on_change(self._change)
        parameters = self._settings.current
        self.robot = wiring.load_robot(
            parameters.robot_file or shared_file('config/robots/sim_arm.yaml')
        )
        self.client_id = wiring.resolve_client_id(parameters.client_id, self.get_namespace())
        recorder = make_edge_recorder(
            parameters,
            self.robot,
            node=self.get_fully_qualified_name(),
            client_id=self.client_id,
            clock=time.monotonic_ns,
            tell=self.get_logger().warning,
        )
        self._listener = recorder or EdgeListener()
        self._actions = ActionQueue(DELAY_RULES[parameters.skip_rule])
        logger = self.get_logger()
        self._log = ChangeLog(
            # rclpy requires one severity per call site
            inform=lambda text: logger.info(text),
            warn=lambda text: logger.warning(text),
            complain=lambda text: logger.error(text),
            clock=time.monotonic_ns,
        )
        self._connection = Connection(time.monotonic_ns, tell=self._on_change)
        self._controller = wiring.make_controller(
            parameters,
            self.robot,
            self._actions,
            lambda: self._connection.on(ConnectionEvent.DRY, 'action queue empty'),
        )
        self._inputs = wiring.make_latest_inputs(self.robot, self.resolve_topic_name)
        self._history = ObservationHistory(self._inputs)
        self._answers = ReplySubscriptions(
            self,
            parameters.servers,
            on_chunk=self._on_chunk,
            on_no_session=self._on_no_session,
            on_liveliness=self._on_liveliness,
        )
        self._requester = self._make_requester(runtime, parameters)
        self._operation = OperatorControl(
            self._controller, self._requester, run_on_start=parameters.run_on_start
        )
        self._step_s = wiring.command_period_s(parameters, self.robot)
        self._beat = FixedRateLoop(int(1e9 * self._step_s))
        self._view = EdgeView(
            self._requester, self._controller, self._operation, self._actions, self._beat
        )
        self._waiting = NotCommandedWarning(self.get_logger().error)
        self._create_robot_io(parameters)
        self._offer(parameters)
        self._start(runtime, parameters, recorder)
        self.get_logger().info(
            f'edge controller {self.client_id}: robot {self.robot.name}, {self.robot.fps:g} Hz, '
            f'servers {", ".join(parameters.servers)}'
        )

    def _start(
        self, runtime: NodeRuntime, parameters: EdgeParameters, recorder: EdgeTraceRecorder | None
    ) -> None:
        """Start the metrics endpoint and all threads."""
        losses = (lambda: recorder.writer.losses) if recorder else dict
        endpoint = metrics.serve(parameters, self._view, losses=losses)
        if endpoint:
            runtime.on_close(endpoint.close)
        ticker = self._make_ticker(parameters)
        threads = [
            runtime.thread('request', self._run_requests, self._requester.close),
            runtime.thread(
                'replies', partial(self._answers.run, runtime.stop), self._answers.wake
            ),
            runtime.thread('tick', partial(ticker.run, runtime.stop)),
        ]
        if recorder:
            totals = partial(reports.count_drops, self._view)
            write = partial(recorder.run, runtime.stop, threads, totals)
            runtime.thread('trace', write, recorder.writer.wake)

    def _make_requester(self, runtime: NodeRuntime, parameters: EdgeParameters) -> Requester:
        clients = {
            server: SessionClient(
                self, server, lifespan_s=parameters.max_action_age_s, stop=runtime.stop
            )
            for server in parameters.servers
        }
        self._watched = InputMonitor(
            self.robot,
            FrozenCameraDetector(parameters.camera_frozen_after_s),
            stop_on_frozen=parameters.on_frozen_camera == 'stop_observations',
            stamp_ns=ros_inputs.stamp_ns,
            now_ns=lambda: self.get_clock().now().nanoseconds,
            mono_ns=time.monotonic_ns,
            drop=lambda reason: self._requester.exchange.drop(reason),
        )
        self._outside = PolicyServerTransport(
            clients,
            self.robot,
            ros_inputs,
            asking=wiring.session_request_factory(
                lambda: self._settings.current,
                self.robot,
                client_id=self.client_id,
                task=lambda: self._requester.exchange.progress.task,
            ),
            settings=lambda: self._settings.current,
            reply_topic=self._answers.topic,
            publisher_count=self._answers.publisher_count,
            watched=self._watched,
            tell=self.get_logger().info,
            warn=self.get_logger().warning,
        )
        return wiring.make_requester(
            parameters,
            self.robot,
            self._outside,
            self._history,
            self._actions,
            self._connection,
            self._controller.report,
            client_id=self.client_id,
            listener=self._listener,
            presence_lease_s=qos.LIVELINESS_LEASE_S,
        )

    def _make_ticker(self, parameters: EdgeParameters) -> ControlLoop:
        return ControlLoop(
            self._beat,
            self._controller,
            self._operation,
            self._history,
            StateReader(self._inputs, ros_inputs, self.robot),
            self._listener,
            command=self._command,
            rest=self._send,
            stop=self._call_stop,
            commands_per_action=parameters.interpolation_multiplier,
            clock=time.monotonic_ns,
        )

    def _create_robot_io(self, parameters: EdgeParameters) -> None:
        """Subscribe to the robot's inputs and publish its commands."""
        overridable = {'qos_overriding_options': qos.OVERRIDABLE}
        for name, (topic, kind, _) in wiring.input_topics(self.robot).items():
            self.create_subscription(
                ros_inputs.MESSAGE_TYPES[kind],
                topic,
                partial(self._on_input, name),
                qos.SENSOR,
                raw=True,
                **overridable,
            )
        command = self.robot.command
        topic, profile = self.resolve_topic_name(command.topic), qos.command(self._step_s)
        create = partial(
            self.create_publisher, COMMAND_TYPES[command.type], topic, profile, **overridable
        )
        self._on_commands = CommandTopicPublishers(self, topic)
        # before this node has a publisher: a running edge does not react
        edges = [OtherPublisher(*each) for each in self._on_commands.wait_for_other_edges()]
        if why_not := command_conflict.start_refusal(topic, edges):
            raise UserError(why_not)
        self._commands = self._on_commands.create(create)
        # held while publishing: after `_withdraw` no command goes out
        self._sending = threading.Lock()
        self._has_commanded = False
        # two states of either edge, and the time of discovery
        tie_s = 1 + 2 * parameters.status_period_s
        self._conflict = command_conflict.CommandConflict(
            topic, self._on_commands.own, tie_steps=round(tie_s / self._step_s)
        )
        self._stop_service = StopService(self, parameters.stop_service)

    def _offer(self, parameters: EdgeParameters) -> None:
        """Create the topics, services and timers for operators and recorders."""
        overridable = {'qos_overriding_options': qos.OVERRIDABLE}
        self._state_publisher = self.create_publisher(
            EdgeState, '~/state', qos.STATE, **overridable
        )
        self._executed_publisher = self.create_publisher(
            ExecutedAction, '~/executed_action', qos.EXECUTED_ACTION, **overridable
        )
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self._runs = EpisodeRunner(
            self._controller,
            self._operation,
            self._requester,
            time.monotonic_ns,
            lambda: self._settings.current.task,
            self._listener.finished,
        )
        self._action = RunEpisodeAction(self, self._runs)
        create_checked_subscription(
            self,
            EpisodeOutcome,
            'episode_outcome',
            self._on_outcome,
            qos.OUTCOME,
            on_drop=self._requester.exchange.drop,
        )
        create_trigger_services(
            self,
            {
                'reset': self._reset,
                'pause': self._operation.pause,
                'resume': self._operation.resume,
                'reset_cage': self._operation.reset_cage,
            },
        )
        self.create_timer(parameters.status_period_s, self._on_timer)
        self.create_timer(1.0, self._on_slow_timer)
        self.create_timer(CONFLICT_CHECK_PERIOD_S, self._on_conflict_timer)

    # executor thread

    def _on_input(self, name: str, raw: bytes) -> None:
        self._inputs.deposit(name, raw, time.monotonic_ns())

    def _reset(self) -> ServiceReply:
        return self._operation.reset(EpisodeRequest(self._settings.current.task))

    def _on_outcome(self, message: EpisodeOutcome) -> None:
        self._listener.judged(message.episode_id, message.outcome, message.text)
        self._runs.on_outcome(message)

    def _on_timer(self) -> None:
        self._state_publisher.publish(self._state())
        self._listener.dropped(reports.count_drops(self._view))
        self._log.look(self._connection.standing, reports.count_problems(self._view))
        self._action.look()
        self._stop_service.look()
        if alarm := self._controller.alarm.take():
            self.get_logger().error(alarm.text)

    def _on_slow_timer(self) -> None:
        self._waiting.look(self._controller.start_blocked_by, self._controller.actions_executed)
        self._diagnostics.publish(
            reports.diagnostics(
                self._state(),
                name=self.get_fully_qualified_name(),
                latched=self._controller.latched,
                clamped=self._controller.alarm.present is not None,
                rival=bool(self._conflict.text),
                frozen=bool(self._watched.text),
            )
        )

    def _on_conflict_timer(self) -> None:
        edges = [OtherPublisher(*each) for each in self._on_commands.edges()]
        own = Own(self._beat.beats + self._beat.missed, self._has_commanded)
        finding = self._conflict.update(edges, own, time.monotonic_ns())
        if finding is ConflictAction.GIVE_WAY:
            self._withdraw()
            raise UserError(command_conflict.start_refusal(self._on_commands.topic, edges))
        if finding is ConflictAction.PAUSE:
            self._operation.pause()
            self.get_logger().error(self._conflict.text)

    def _withdraw(self) -> None:
        """Stop publishing at once: the other edge commands the robot."""
        with self._sending:
            self._conflict.is_silent = True
        self.destroy_publisher(self._commands)

    def _change(self, parameters: EdgeParameters) -> None:
        self._requester.next_settings = wiring.request_settings(parameters, self.robot)
        self._listener.tuned(parameters)

    # any thread, serialised by Connection

    def _on_change(self, change: ConnectionChange) -> None:
        self._listener.changed(change)
        self._log.changed(change)

    # threads `answers` and `request`

    def _on_chunk(self, raw: bytes) -> None:
        self._requester.on_chunk(raw)

    def _on_no_session(self, raw: bytes) -> None:
        self._requester.on_no_session(raw)

    def _on_liveliness(self, server: str, now: LivelinessStatus) -> None:
        self._requester.on_liveliness(
            server, alive=now.alive, change=now.alive_change, is_silent=now.not_alive_change > 0
        )

    def _run_requests(self) -> None:
        self._requester.run()
        self._outside.close()

    # tick thread

    def _command(self, executed: ExecutedStep, tick: int) -> None:
        if self._conflict.is_silent:
            return
        if executed.judgement.command is not None:
            self._send(executed.judgement.command)
        told = reports.executed_action(
            executed,
            stamp=self.get_clock().now().to_msg(),
            control_step=tick,
            client_id=self.client_id,
        )
        self._executed_publisher.publish(told)

    def _send(self, command: np.ndarray) -> None:
        stamp = self.get_clock().now().to_msg()
        message = command_message(command, self.robot, stamp, self._step_s)
        with self._sending:
            if self._conflict.is_silent:
                return
            self._has_commanded = True
            self._commands.publish(message)

    def _call_stop(self) -> None:
        self._stop_service.call(self._controller.rung_reason)

    # executor thread

    def _state(self) -> EdgeState:
        return reports.edge_state(
            self._view,
            alarm=self._conflict.text or self._watched.text,
            stamp=self.get_clock().now().to_msg(),
            client_id=self.client_id,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `edge_controller`."""
    return run(EdgeController, arguments, NodeCommand('edge_controller', EdgeParameters))


if __name__ == '__main__':
    raise SystemExit(main())
