"""
The node edge_controller: inputs in, requests out, chunks in, commands out.

Four threads: the executor and `answers` deposit what arrives, `request` asks for chunks, `tick`
commands the robot. A fifth, `trace`, writes it down where that is wanted. The process holds no
torch, so that nothing but these competes for the interpreter.
"""

from __future__ import annotations

from functools import partial
import threading
import time

from diagnostic_msgs.msg import DiagnosticArray
import numpy as np

from lerobot_serve.edge import metrics, preparation, reports, rivals
from lerobot_serve.edge.frozen import FrozenCameras
from lerobot_serve.edge.history import History
from lerobot_serve.edge.link import Episode
from lerobot_serve.edge.listener import Listener
from lerobot_serve.edge.log import ChangeLog
from lerobot_serve.edge.operation import Answer, Operation
from lerobot_serve.edge.outside import Outside
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.queue.actions import ActionQueue
from lerobot_serve.edge.queue.delay import RULES
from lerobot_serve.edge.recorder import make_recorder, Recorder
from lerobot_serve.edge.reports import View
from lerobot_serve.edge.requester import Requester
from lerobot_serve.edge.rivals import Finding, Own, Rival
from lerobot_serve.edge.robot.commands import command_message, TYPES
from lerobot_serve.edge.runs import Runs
from lerobot_serve.edge.states import Change, Connection, Event
from lerobot_serve.edge.step import Executed
from lerobot_serve.edge.ticker import Senses, Ticker
from lerobot_serve.edge.waiting import Waiting
from lerobot_serve.edge.watched import WatchedInputs
from lerobot_serve.ros import inputs as ros_inputs
from lerobot_serve.ros import qos
from lerobot_serve.ros.beat import Beat
from lerobot_serve.ros.command_line import Command
from lerobot_serve.ros.decoding import subscribe
from lerobot_serve.ros.lane import Liveliness
from lerobot_serve.ros.parameter_server import ParameterServer
from lerobot_serve.ros.publishers import Publishers
from lerobot_serve.ros.run_episode import RunEpisodeAction
from lerobot_serve.ros.runtime import run, Runtime, UserError
from lerobot_serve.ros.server_answers import ServerAnswers
from lerobot_serve.ros.session_client import SessionClient
from lerobot_serve.ros.share import shared_file
from lerobot_serve.ros.steady import SteadyNode
from lerobot_serve.ros.stop import StopService
from lerobot_serve.ros.triggers import offer_triggers
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction

# how often other edge controllers are looked for
RIVALS_S = 0.2


class EdgeController(SteadyNode):
    """See the module. Built in the main thread; each method says whose it is."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('edge_controller', context=runtime.context)
        self._settings = ParameterServer(self, EdgeParameters)
        self._settings.on_change(self._change)
        parameters = self._settings.current
        self.robot = preparation.load_robot(
            parameters.robot_file or shared_file('config/robots/sim_arm.yaml')
        )
        self.client_id = preparation.name_client(parameters.client_id, self.get_namespace())
        recorder = make_recorder(
            parameters,
            self.robot,
            node=self.get_fully_qualified_name(),
            client_id=self.client_id,
            clock=time.monotonic_ns,
            tell=self.get_logger().warning,
        )
        self._listener = recorder or Listener()
        self._actions = ActionQueue(RULES[parameters.delay_rule])
        logger = self.get_logger()
        self._log = ChangeLog(
            # rclpy wants one severity for each place that logs
            inform=lambda text: logger.info(text),
            warn=lambda text: logger.warning(text),
            complain=lambda text: logger.error(text),
            clock=time.monotonic_ns,
        )
        self._connection = Connection(time.monotonic_ns, tell=self._on_change)
        self._controller = preparation.controller(
            parameters,
            self.robot,
            self._actions,
            lambda: self._connection.on(Event.DRY, 'nothing fresh is left to play'),
        )
        self._inputs = preparation.newest(self.robot, self.resolve_topic_name)
        self._history = History(self._inputs)
        self._answers = ServerAnswers(
            self,
            parameters.servers,
            on_chunk=self._on_chunk,
            on_no_session=self._on_no_session,
            on_liveliness=self._on_liveliness,
        )
        self._requester = self._make_requester(runtime, parameters)
        self._operation = Operation(
            self._controller, self._requester, runs_by_itself=parameters.runs_by_itself
        )
        self._step_s = preparation.tick_s(parameters, self.robot)
        self._beat = Beat(int(1e9 * self._step_s))
        self._view = View(
            self._requester, self._controller, self._operation, self._actions, self._beat
        )
        self._waiting = Waiting(self.get_logger().error)
        self._connect_robot(parameters)
        self._offer(parameters)
        self._start(runtime, parameters, recorder)
        self.get_logger().info(
            f'{self.client_id} ({self.robot.name}) at {self.robot.fps:g} Hz asks '
            f'{", ".join(parameters.servers)}'
        )

    def _start(
        self, runtime: Runtime, parameters: EdgeParameters, recorder: Recorder | None
    ) -> None:
        """Open the endpoint, and let everything run."""
        losses = (lambda: recorder.writer.losses) if recorder else dict
        endpoint = metrics.serve(parameters, self._view, losses=losses)
        if endpoint:
            runtime.on_close(endpoint.close)
        ticker = self._make_ticker(parameters)
        threads = [
            runtime.thread('request', self._run_requests, self._requester.close),
            runtime.thread(
                'answers', partial(self._answers.run, runtime.stop), self._answers.wake
            ),
            runtime.thread('tick', partial(ticker.run, runtime.stop)),
        ]
        if recorder:
            totals = partial(reports.count_drops, self._view)
            write = partial(recorder.run, runtime.stop, threads, totals)
            runtime.thread('trace', write, recorder.writer.wake)

    def _make_requester(self, runtime: Runtime, parameters: EdgeParameters) -> Requester:
        clients = {
            server: SessionClient(
                self, server, lifespan_s=parameters.max_action_age_s, stop=runtime.stop
            )
            for server in parameters.servers
        }
        self._watched = WatchedInputs(
            self.robot,
            FrozenCameras(parameters.frozen_after_s),
            frozen_stops=parameters.frozen_camera == 'stop',
            stamp_ns=ros_inputs.stamp_ns,
            now_ns=lambda: self.get_clock().now().nanoseconds,
            mono_ns=time.monotonic_ns,
            drop=lambda reason: self._requester.exchange.drop(reason),
        )
        self._outside = Outside(
            clients,
            self.robot,
            ros_inputs,
            asking=preparation.asking(
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
        return preparation.requester(
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

    def _make_ticker(self, parameters: EdgeParameters) -> Ticker:
        return Ticker(
            self._beat,
            self._controller,
            self._operation,
            self._history,
            Senses(self._inputs, ros_inputs, self.robot),
            self._listener,
            command=self._command,
            rest=self._send,
            stop=self._call_stop,
            ticks_a_step=parameters.interpolation,
            clock=time.monotonic_ns,
        )

    def _connect_robot(self, parameters: EdgeParameters) -> None:
        """Subscribe to the robot's inputs and publish its commands."""
        overridable = {'qos_overriding_options': qos.OVERRIDABLE}
        for name, (topic, kind, _) in preparation.inputs(self.robot).items():
            self.create_subscription(
                ros_inputs.TYPES[kind],
                topic,
                partial(self._on_input, name),
                qos.SENSOR,
                raw=True,
                **overridable,
            )
        command = self.robot.command
        topic, profile = self.resolve_topic_name(command.topic), qos.command(self._step_s)
        create = partial(self.create_publisher, TYPES[command.type], topic, profile, **overridable)
        self._on_commands = Publishers(self, topic)
        # before it has a publisher itself: an edge that plays need not notice
        edges = [Rival(*each) for each in self._on_commands.wait_for_edges()]
        if why_not := rivals.refusal(topic, edges):
            raise UserError(why_not)
        self._commands = self._on_commands.create(create)
        # held so that an edge that gives way commands nothing more
        self._sending = threading.Lock()
        self._has_commanded = False
        # two states of either edge, and what discovery adds
        tie_s = 1 + 2 * parameters.status_period_s
        self._rivalry = rivals.Rivalry(
            topic, self._on_commands.own, tie_ticks=round(tie_s / self._step_s)
        )
        self._stop_service = StopService(self, parameters.stop_service)

    def _offer(self, parameters: EdgeParameters) -> None:
        """Create what operators and recorders see."""
        overridable = {'qos_overriding_options': qos.OVERRIDABLE}
        self._state_publisher = self.create_publisher(
            EdgeState, '~/state', qos.STATE, **overridable
        )
        self._executed_publisher = self.create_publisher(
            ExecutedAction, '~/executed_action', qos.EXECUTED_ACTION, **overridable
        )
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self._runs = Runs(
            self._controller,
            self._operation,
            self._requester,
            time.monotonic_ns,
            lambda: self._settings.current.task,
            self._listener.finished,
        )
        self._action = RunEpisodeAction(self, self._runs)
        subscribe(
            self,
            EpisodeOutcome,
            'episode_outcome',
            self._on_outcome,
            qos.OUTCOME,
            drop=self._requester.exchange.drop,
        )
        offer_triggers(
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
        self.create_timer(RIVALS_S, self._on_rivals_timer)

    # executor thread

    def _on_input(self, name: str, raw: bytes) -> None:
        self._inputs.deposit(name, raw, time.monotonic_ns())

    def _reset(self) -> Answer:
        return self._operation.reset(Episode(self._settings.current.task))

    def _on_outcome(self, message: EpisodeOutcome) -> None:
        self._listener.judged(message.episode_id, message.outcome, message.text)
        self._runs.on_outcome(message)

    def _on_timer(self) -> None:
        self._state_publisher.publish(self._state())
        self._listener.dropped(reports.count_drops(self._view))
        self._log.look(self._connection.standing, reports.count_troubles(self._view))
        self._action.look()
        self._stop_service.look()
        if alarm := self._controller.alarm.take():
            self.get_logger().error(alarm.text)

    def _on_slow_timer(self) -> None:
        self._waiting.look(self._controller.waits_for, self._controller.actions_executed)
        self._diagnostics.publish(
            reports.diagnostics(
                self._state(),
                name=self.get_fully_qualified_name(),
                latched=self._controller.latched,
                clamped=self._controller.alarm.present is not None,
                rival=bool(self._rivalry.text),
                frozen=bool(self._watched.text),
            )
        )

    def _on_rivals_timer(self) -> None:
        edges = [Rival(*each) for each in self._on_commands.edges()]
        own = Own(self._beat.beats + self._beat.missed, self._has_commanded)
        finding = self._rivalry.update(edges, own, time.monotonic_ns())
        if finding is Finding.GIVE_WAY:
            self._withdraw()
            raise UserError(rivals.refusal(self._on_commands.topic, edges))
        if finding is Finding.PAUSE:
            self._operation.pause()
            self.get_logger().error(self._rivalry.text)

    def _withdraw(self) -> None:
        """Stop publishing at once: the other edge commands the robot."""
        with self._sending:
            self._rivalry.is_silent = True
        self.destroy_publisher(self._commands)

    def _change(self, parameters: EdgeParameters) -> None:
        self._requester.next_pace = preparation.pace(parameters, self.robot)
        self._listener.tuned(parameters)

    # whoever brings it about, one at a time

    def _on_change(self, change: Change) -> None:
        self._listener.changed(change)
        self._log.changed(change)

    # answers and request threads

    def _on_chunk(self, raw: bytes) -> None:
        self._requester.on_chunk(raw)

    def _on_no_session(self, raw: bytes) -> None:
        self._requester.on_no_session(raw)

    def _on_liveliness(self, server: str, now: Liveliness) -> None:
        self._requester.on_liveliness(
            server, alive=now.alive, change=now.alive_change, is_silent=now.silent_change > 0
        )

    def _run_requests(self) -> None:
        self._requester.run()
        self._outside.close()

    # tick thread

    def _command(self, executed: Executed, tick: int) -> None:
        if self._rivalry.is_silent:
            return
        if executed.judgement.command is not None:
            self._send(executed.judgement.command)
        told = reports.executed_action(
            executed,
            stamp=self.get_clock().now().to_msg(),
            tick=tick,
            client_id=self.client_id,
        )
        self._executed_publisher.publish(told)

    def _send(self, command: np.ndarray) -> None:
        stamp = self.get_clock().now().to_msg()
        message = command_message(command, self.robot, stamp, self._step_s)
        with self._sending:
            if self._rivalry.is_silent:
                return
            self._has_commanded = True
            self._commands.publish(message)

    def _call_stop(self) -> None:
        self._stop_service.call(self._controller.rung_reason)

    # executor thread

    def _state(self) -> EdgeState:
        return reports.edge_state(
            self._view,
            alarm=self._rivalry.text or self._watched.text,
            stamp=self.get_clock().now().to_msg(),
            client_id=self.client_id,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `edge_controller`."""
    return run(EdgeController, arguments, Command('edge_controller', EdgeParameters))


if __name__ == '__main__':
    raise SystemExit(main())
