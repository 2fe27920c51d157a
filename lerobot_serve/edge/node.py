# SPDX-License-Identifier: Apache-2.0
"""
The node edge_controller: inputs in, requests out, chunks in, commands out.

Six threads: the executor, `inputs` and `replies` deposit what arrives, `request` requests chunks,
`tick` commands the robot, `decisions` writes what survives a restart. A seventh, `trace`, writes
the trace if one is configured. The process imports no torch, so that only these threads compete
for the interpreter.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
import secrets

from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Image
from std_msgs.msg import String

from lerobot_serve.contract import records
from lerobot_serve.contract.data_path.execution_report import Halt
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge import clock, wiring
from lerobot_serve.edge.control.loop import ControlLoop
from lerobot_serve.edge.control.operator_control import ServiceReply
from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.episode_outcomes import OutcomeReports
from lerobot_serve.edge.episode_runner import EpisodeRunner
from lerobot_serve.edge.inputs.monitor import InputMonitor
from lerobot_serve.edge.inputs.observation_builder import ObservationBuilder
from lerobot_serve.edge.inputs.state_reader import StateReader, StepInputs
from lerobot_serve.edge.observability import metrics, reports
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.observability.logs import (
    ChangeLog,
    LatchLog,
    ProblemLog,
    StandingReasonLog,
    StateLog,
)
from lerobot_serve.edge.observability.reports import EdgeView
from lerobot_serve.edge.observability.trace_recorder import EdgeTraceRecorder, make_edge_recorder
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import input_topics
from lerobot_serve.edge.ros import person_messages, sensor_messages
from lerobot_serve.edge.ros.person_messages import PersonSubscriptions
from lerobot_serve.edge.ros.robot_commands import RobotCommands
from lerobot_serve.edge.ros.run_episode_action import RunEpisodeAction
from lerobot_serve.edge.ros.server_links import open_server_links
from lerobot_serve.edge.session.connection import ConnectionChange
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.transport.policy_server_transport import PolicyServerTransport
from lerobot_serve.edge.session_request import chunk_rate_warnings, make_session_request
from lerobot_serve.edge.wiring import EdgeCore
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_messages import record_of
from lerobot_serve.ros.node.fixed_rate_loop import FixedRateLoop
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.node.trigger_services import create_trigger_services
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.ros.subscriptions import create_checked_subscription, DedicatedSubscriptions
from lerobot_serve.state_folder import FolderLock, state_folder
from lerobot_serve.telemetry.log_throttle import Logs
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome

# period of the search for other edge controllers
CONFLICT_CHECK_PERIOD_S = 0.2
# of the cage, for commands held without a known state
STATE_CAUSES = ('position_unknown', 'state_unknown')


class EdgeController(SteadyClockNode):
    """
    Wires the edge controller to ROS. The main thread builds it; sections name the calling thread.
    """

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('edge_controller', context=runtime.context)
        self._settings = NodeParameters(self, EdgeParameters)
        self._settings.on_change(self._change)
        parameters = self._settings.current
        robot_file = parameters.robot_file or shared_file('config/robots/sim_arm.yaml')
        self.robot = wiring.load_robot(robot_file)
        self.client_id = wiring.resolve_client_id(parameters.client_id, self.get_namespace())
        self._instance = secrets.randbits(63)
        self._folder_lock, self._decisions = self._open_state(parameters)
        recorder = self._make_recorder(parameters)
        self._listener = recorder or EdgeListener()
        logger = self.get_logger()
        # rclpy requires one severity per call site, which is a line
        logs = self._logs = Logs(
            info=lambda text: logger.info(text),
            warning=lambda text: logger.warning(text),
            error=lambda text: logger.error(text),
            clock=clock.now_ns,
        )
        self._log, self._latch_log = ChangeLog(logs), LatchLog(logs)
        self._problem_log, self._state_log = ProblemLog(logs), StateLog(logs)
        self._not_commanded = StandingReasonLog(logger.error, 'no commands sent: ')
        self._unsaved_log = StandingReasonLog(logger.error)
        self._core = EdgeCore(
            parameters,
            self.robot,
            Inbox(self.client_id, clock.now_ns),
            self._decisions,
            listener=self._listener,
            on_change=self._on_connection_change,
            liveliness_lease_s=qos.LIVELINESS_LEASE_S,
            resolve_topic=self.resolve_topic_name,
        )
        self._state_reader = StateReader(self._core.inputs, sensor_messages, self.robot)
        self._monitor = self._make_monitor(parameters)
        self._observations = ObservationBuilder(
            self.robot,
            sensor_messages,
            self._monitor,
            settings=self._current_parameters,
            log=self.get_logger().info,
        )
        inbox = self._core.inbox
        self._links, self._link_threads = open_server_links(
            self,
            runtime,
            parameters,
            self.client_id,
            lambda server: LinkCallbacks(
                inbox.put_reply,
                inbox.put_no_session,
                partial(self._core.liveliness.update, server),
            ),
        )
        transport = self._make_transport()
        self._requester = self._core.make_requester(transport, self._observations)
        self._takeover = self._core.make_takeover(person_messages)
        self._operator = self._core.make_operator_control(self._requester, self._takeover)
        step_s = parameters.command_period_s(self.robot.fps)
        self._rate = FixedRateLoop(int(1e9 * step_s), clock.now_ns)
        self._view = EdgeView(
            self._requester,
            self._core.controller,
            self._operator,
            queue=self._core.queue,
            history=self._core.history,
            rate=self._rate,
        )
        self._subscribe_inputs()
        self._output = RobotCommands(
            self,
            self.robot,
            client_id=self.client_id,
            episode_id=lambda: self._operator.episode_id,
            step_s=step_s,
            # two states of each edge, and the discovery time
            tie_s=1 + 2 * parameters.status_period_s,
            stop_service=parameters.stop_service,
        )
        self._create_operator_interfaces(parameters)
        self._publish_robot_file(Path(robot_file))
        self._start(runtime, parameters, recorder)
        self.get_logger().info(
            f'edge controller {self.client_id}: robot {self.robot.name}, {self.robot.fps:g} Hz, '
            f'servers {", ".join(parameters.servers)}'
        )

    def _open_state(self, parameters: EdgeParameters) -> tuple[FolderLock, RobotDecisions]:
        """
        Lock the state folder; say what was decided before this start, and what ends it. Raises
        ParameterError, and UserError if another node owns the folder.
        """
        name, logger = self.get_fully_qualified_name(), self.get_logger()
        folder = state_folder(parameters.state_folder, name)
        lock = FolderLock(folder, name, 'state_folder')
        if lock.fault:
            logger.warning(lock.fault)
        decisions = RobotDecisions(folder)
        for each in filter(decisions.holds, Decision):
            why = decisions.reason(each)
            logger.warning(
                f'{each} before this start{f" ({why})" if why else ""}: the robot waits for '
                f'{each.lifted_by}, which removes {decisions.path(each)}'
            )
        decisions.start()
        return lock, decisions

    def _make_recorder(self, parameters: EdgeParameters) -> EdgeTraceRecorder | None:
        return make_edge_recorder(
            parameters,
            self.robot,
            node=self.get_fully_qualified_name(),
            client_id=self.client_id,
            clock=clock.now_ns,
            log_warning=self.get_logger().warning,
        )

    def _make_monitor(self, parameters: EdgeParameters) -> InputMonitor:
        return InputMonitor(
            self.robot,
            parameters,
            stamp_ns=sensor_messages.stamp_ns,
            now_ns=lambda: self.get_clock().now().nanoseconds,
            mono_ns=clock.now_ns,
            count_dropped=self._core.status.count_dropped,
        )

    def _make_transport(self) -> PolicyServerTransport:
        return PolicyServerTransport(
            self._links.clients,
            self.robot,
            session_request=self._session_request,
            rate_warnings=lambda chunk_size: chunk_rate_warnings(
                self._settings.current, self.robot, chunk_size
            ),
            logs=self._logs,
        )

    def _session_request(self, epoch: int) -> records.OpenSessionRequest:
        return make_session_request(
            self._settings.current,
            self.robot,
            client_id=self.client_id,
            instance=self._instance,
            epoch=epoch,
            task=self._core.status.task,
            cameras=self._observations.cameras,
        )

    def _subscribe_inputs(self) -> None:
        # messages of cameras and joints come more often than all else
        self._inputs = DedicatedSubscriptions(self, Image, {}, qos.SENSOR)
        names: dict[str, list[str]] = {}
        for name, (topic, kind, _) in input_topics(self.robot).items():
            # two cameras may have one topic
            if topic not in names:
                deposit = partial(self._on_input, names.setdefault(topic, []))
                kind_class = sensor_messages.MESSAGE_TYPES[kind]
                self._inputs.add_with_id(topic, qos.SENSOR, deposit, kind_class)
            names[topic].append(name)
        self._person = None
        if device := self._takeover.device:
            wiring.check_person_topics(self.robot, self.resolve_topic_name)
            self._person = PersonSubscriptions(self, self._inputs, device)

    def _create_operator_interfaces(self, parameters: EdgeParameters) -> None:
        """Create the topics, services and timers for operators and recorders."""
        publish = partial(self.create_publisher, qos_overriding_options=qos.OVERRIDABLE)
        self._state_publisher = publish(EdgeState, '~/state', qos.STATE)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self._runner = EpisodeRunner(
            self._core.controller,
            self._operator,
            self._requester,
            clock.now_ns,
            task=lambda: self._settings.current.task,
            on_finished=self._listener.run_finished,
        )
        self._action = RunEpisodeAction(self, self._runner)
        self._outcomes = OutcomeReports(
            self.client_id,
            {server: self._links.clients[server] for server in parameters.servers_over_zenoh},
            lambda: self._core.status.server,
            clock.now_ns,
            count_dropped=self._core.status.count_dropped,
            log_warning=self.get_logger().warning,
        )
        create_checked_subscription(
            self,
            EpisodeOutcome,
            'episode_outcome',
            self._on_outcome,
            qos.OUTCOME,
            on_drop=self._core.status.count_dropped,
        )
        create_trigger_services(
            self,
            {
                'reset': self._reset,
                'pause': self._operator.pause,
                'resume': self._operator.resume,
                'reset_cage': self._reset_cage,
                'take_over': self._operator.take_over,
                'hand_back': self._operator.hand_back,
            },
        )
        self.create_timer(parameters.status_period_s, self._on_timer)
        self.create_timer(1.0, self._on_slow_timer)
        self.create_timer(CONFLICT_CHECK_PERIOD_S, self._on_conflict_timer)

    def _publish_robot_file(self, path: Path) -> None:
        """Publish the robot file once, for recordings: they name inputs and actions by it."""
        self._robot_file_publisher = self.create_publisher(
            String, '~/robot_file', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        self._robot_file_publisher.publish(String(data=path.read_text()))

    def _start(
        self, runtime: NodeRuntime, parameters: EdgeParameters, recorder: EdgeTraceRecorder | None
    ) -> None:
        """Start the metrics endpoint and all threads."""
        losses = (lambda: recorder.writer.losses) if recorder else dict[str, int]
        endpoint = metrics.serve(
            parameters, self._view, losses=losses, why_not_alive=runtime.why_not_alive
        )
        if endpoint:
            runtime.on_close(endpoint.close)
        loop = ControlLoop(
            self._rate,
            self._core.controller,
            self._operator,
            StepInputs(
                self._core.history,
                self._state_reader,
                parameters.interpolation_multiplier,
            ),
            self._output,
            listener=self._listener,
            clock=clock.now_ns,
        )
        threads = [
            *self._link_threads,
            runtime.thread('inputs', partial(self._inputs.run, runtime.stop), self._inputs.wake),
            runtime.thread('request', self._run_requests, self._requester.close),
            runtime.thread('tick', partial(loop.run, runtime.stop)),
        ]
        runtime.heartbeats.add('tick', lambda: self._rate.cycles)
        if recorder:
            totals = partial(reports.count_drops, self._view)
            write = partial(recorder.run, runtime.stop, threads, totals)
            runtime.thread('trace', write, recorder.writer.wake)

    def _current_parameters(self) -> EdgeParameters:
        return self._settings.current

    # inputs thread

    def _on_input(self, names: list[str], raw: bytes, message_id: int) -> None:
        now_ns = clock.now_ns()
        for name in names:
            self._core.inputs.deposit(name, raw, now_ns, message_id)

    # executor thread

    def _reset(self) -> ServiceReply:
        """Begin an episode, which ends the run of a goal."""
        self._action.poll()
        self._runner.stop('~/reset was called')
        self._action.poll()
        return self._operator.reset(EpisodeRequest(self._settings.current.task))

    def _reset_cage(self) -> ServiceReply:
        # a run that the latch ends must see it
        self._action.poll()
        return self._operator.reset_cage()

    def _on_outcome(self, message: EpisodeOutcome) -> None:
        self._listener.outcome_received(message.episode_id, message.outcome, message.text)
        self._runner.on_outcome(message)
        self._action.poll()
        try:
            self._outcomes.add(record_of(message, records.EpisodeOutcome))
        except Malformed as error:
            self._core.status.count_dropped(error.reason)

    def _on_timer(self) -> None:
        self._state_publisher.publish(self._state())
        self._listener.dropped(reports.count_drops(self._view))
        self._log.poll(self._core.connection.status, self._settings.current.server_names)
        self._log_problems()
        self._latch_log.poll(self._core.controller.latch_reason)
        self._action.publish_feedback()
        self._outcomes.poll()
        self._output.poll_stop_service()
        alarm = self._core.controller.alarm.take_unreported()
        if alarm and not alarm.latches:  # one that latches is logged as the reason of the latch
            self.get_logger().error(alarm.text)

    def _log_problems(self) -> None:
        controller, reader = self._core.controller, self._state_reader
        self._problem_log.poll(
            reports.count_problems(self._view),
            reports.count_in_steps(self._view),
            self._rate.cycles + self._rate.missed,
        )
        held = sum(controller.trip_causes.get(cause, 0) for cause in STATE_CAUSES)
        held += controller.steps_in_silence
        why = reader.last_unknown
        if controller.last_silence == 'stood_still':
            why = 'this process stood still'
        self._state_log.poll(reader.unknown or (controller.silence and why), why, held)

    def _on_slow_timer(self) -> None:
        controller = self._core.controller
        self._not_commanded.poll(controller.start_blocked_by, controller.actions_executed)
        self._unsaved_log.poll(self._decisions.warning)
        self._diagnostics.publish(
            reports.diagnostics(
                self._state(),
                name=self.get_fully_qualified_name(),
                halted=controller.halt is not Halt.NONE,
                clamped=controller.alarm.current is not None,
                has_conflict=bool(self._output.alarm),
                frozen=bool(self._monitor.text),
                trip_causes=controller.trip_causes,
            )
        )

    def _on_conflict_timer(self) -> None:
        if self._person:
            self._person.poll(has_conflict=bool(self._output.alarm))
        if self._output.check_conflict(self._rate.cycles + self._rate.missed):
            self._operator.pause(self._output.alarm)
            self.get_logger().error(self._output.alarm)

    def _change(self, parameters: EdgeParameters) -> None:
        self._requester.next_settings = parameters
        self._listener.parameters_changed(parameters)

    def _state(self) -> EdgeState:
        return reports.edge_state(
            self._view,
            alarm=self._output.alarm or self._monitor.text,
            stamp=self.get_clock().now().to_msg(),
            client_id=self.client_id,
        )

    # any thread, serialised by Connection

    def _on_connection_change(self, change: ConnectionChange) -> None:
        self._listener.changed(change)
        self._log.changed(change)

    # thread `request`

    def _run_requests(self) -> None:
        self._requester.run()
        self._observations.close()

    def destroy_node(self) -> None:
        """Destroy the node; called once its threads have ended."""
        self._links.close()
        self._inputs.close()
        self._decisions.close()
        self._folder_lock.release()
        super().destroy_node()


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `edge_controller`."""
    return run(EdgeController, arguments, NodeCommand('edge_controller', EdgeParameters))


if __name__ == '__main__':
    raise SystemExit(main())
