# SPDX-License-Identifier: Apache-2.0
"""
Builds the plain parts of one edge controller from its parameters and robot file, in the order of
the data flow. The thread that builds the node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
import random

from lerobot_serve.cage.cage import Cage
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.edge.action_queue import ActionQueue, DELAY_RULES
from lerobot_serve.edge.control.clamp_alarm import ClampAlarm
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.ladder import Ladder
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.control.playback import ActionPlayback, Interpolator
from lerobot_serve.edge.control.pose_tracker import ManualMoveDetector, PoseTracker, StartPosition
from lerobot_serve.edge.control.rungs import parse_ladder, ramp_s, teardown_rungs
from lerobot_serve.edge.control.step import StepSettings
from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.inputs.latest import LatestInputs, ObservationHistory
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import input_max_ages_ns, input_topics, RobotDescription
from lerobot_serve.edge.robot.file import load
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.edge.session.chunk_merging import ChunkMerger
from lerobot_serve.edge.session.connection import Connection, ConnectionChange, ConnectionEvent
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import EpisodeRequest, RequestPipeline, SessionStatus
from lerobot_serve.edge.session.request import ObservationReader, RequestParts, RobotSession
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.servers import ServerLiveliness
from lerobot_serve.edge.session.transport.transport import Transport
from lerobot_serve.edge.takeover import PersonInput, PersonMessages, Takeover
from lerobot_serve.parameters import ParameterError
from lerobot_serve.session.failover import ServerSelection

# one or two samples may be misread; three cost a tenth of a second at 30 Hz
START_SAMPLES = 3
# a tick that is late by a step or two is none
MIN_SILENCE_STEPS = 3


def load_robot(path: str | Path) -> RobotDescription:
    """Load the robot file. Raises ParameterError."""
    try:
        return load(Path(path))
    except RobotFileError as error:
        raise ParameterError(str(error)) from error


def make_controller(
    parameters: EdgeParameters,
    robot: RobotDescription,
    decisions: RobotDecisions,
    queue: ActionQueue,
    on_queue_empty: Callable[[], object],
) -> Controller:
    """
    Build the controller with its cage and ladder, stopped or latched as before this start. Raises
    ParameterError.
    """
    step_s = parameters.command_period_s(robot.fps)
    ladder = _ladder(parameters, robot, decisions, step_s)
    cage = _cage(parameters, robot, decisions, step_s)
    return Controller(
        ActionPlayback(
            queue,
            ladder,
            Interpolator(parameters.interpolation_multiplier),
            int(1e9 * parameters.max_action_age_s),
        ),
        ladder,
        cage,
        _pose_tracker(parameters, robot, cage, step_s),
        StepSettings(
            int(1e9 * step_s), is_silent_while_paused=parameters.while_paused == 'no_command'
        ),
        alarm=ClampAlarm(
            robot.actions,
            window_steps=round(parameters.clamp_alarm_window_s / step_s),
            window_s=parameters.clamp_alarm_window_s,
        ),
        on_queue_empty=on_queue_empty,
    )


def _pose_tracker(
    parameters: EdgeParameters, robot: RobotDescription, cage: Cage, step_s: float
) -> PoseTracker:
    silence_s = max(parameters.state_timeout_s, MIN_SILENCE_STEPS * step_s)
    return PoseTracker(
        StartPosition(
            cage.limits, samples=START_SAMPLES, tolerance_share=parameters.start_tolerance
        ),
        ManualMoveDetector(cage.limits),
        silence_ns=int(1e9 * silence_s),
        # a state that the robot file still accepts is not missing
        unseen_ns=int(1e9 * max((silence_s, *(source.max_age_s for source in robot.state)))),
    )


def _ladder(
    parameters: EdgeParameters, robot: RobotDescription, decisions: RobotDecisions, step_s: float
) -> Ladder:
    rungs = parse_ladder(parameters.fallback_ladder, robot, step_s=step_s)
    stop_s = ramp_s(rungs, robot, step_s)
    return Ladder(
        rungs,
        robot,
        step_s=step_s,
        resume_rows=max(1, round(parameters.resume_threshold_s * robot.fps)),
        teardown=teardown_rungs(parameters.teardown, robot, stop_s, step_s=step_s),
        has_stop_service=bool(parameters.stop_service),
        stopped_by=before_start(decisions, Decision.STOPPED),
        on_stop=partial(decisions.decide, Decision.STOPPED),
    )


def _cage(
    parameters: EdgeParameters, robot: RobotDescription, decisions: RobotDecisions, step_s: float
) -> Cage:
    try:
        return Cage(
            robot.actions,
            robot.interlocks,
            robot.own_state_names,
            step_s=step_s,
            # one action is several commands
            latch_after_trips=parameters.latch_after_trips * parameters.interpolation_multiplier,
            latched_by=before_start(decisions, Decision.LATCHED),
            on_latch=partial(decisions.decide, Decision.LATCHED),
        )
    except ValueError as error:
        raise ParameterError(f'robot_file: {error}') from error


def before_start(decisions: RobotDecisions, decision: Decision) -> str:
    """Return why it was decided before this start; empty if it was not."""
    if not decisions.holds(decision):
        return ''
    return f'before this start: {decisions.reason(decision) or "the reason is lost"}'


def make_latest_inputs(robot: RobotDescription, resolve: Callable[[str], str]) -> LatestInputs:
    """Build the store of the latest inputs; `resolve` returns the full name of a topic."""
    topics = {name: resolve(topic) for name, (topic, _, _) in input_topics(robot).items()}
    return LatestInputs(input_max_ages_ns(robot), topics)


def check_person_topics(robot: RobotDescription, resolve: Callable[[str], str]) -> None:
    """
    Check the topics of the device of a person by their full names, to which namespace and remap
    rules may lead: an edge that follows its own commands would never stop. Raises ParameterError.
    """
    device = robot.intervention
    if device is None:
        return
    used = {resolve(robot.command.topic): 'the command topic of the robot'}
    inputs = [source.topic for source in robot.state] + [each.topic for each in robot.cameras]
    used |= dict.fromkeys(map(resolve, inputs), 'an input topic of the robot')
    for topic in filter(None, (device.topic, device.deadman_topic)):
        if use := used.get(resolve(topic)):
            raise ParameterError(
                f'robot_file: intervention: topic {topic} is {resolve(topic)}, {use}; use another '
                'one for the device of a person'
            )


def resolve_client_id(client_id: str, namespace: str) -> str:
    """Return the client_id of this robot. Raises ParameterError."""
    name = client_id or namespace.strip('/').replace('/', '.')
    if not name:
        raise ParameterError('client_id is empty and the node has no namespace; set one of them')
    if len(name.encode()) > ID_LIMIT:
        raise ParameterError(f'client_id must have at most {ID_LIMIT} bytes, got {name[:20]!r}...')
    return name


class EdgeCore:
    """
    All parts between inputs and commands; `make_requester` adds the connection to servers. The
    clock is that of the inbox. Raises ParameterError.
    """

    def __init__(
        self,
        parameters: EdgeParameters,
        robot: RobotDescription,
        inbox: Inbox,
        decisions: RobotDecisions,
        *,
        listener: EdgeListener,
        on_change: Callable[[ConnectionChange], None],
        liveliness_lease_s: float,
        resolve_topic: Callable[[str], str],
    ) -> None:
        self.parameters, self.robot, self.inbox = parameters, robot, inbox
        self.listener, self.decisions = listener, decisions
        self.status = SessionStatus()
        self.inputs = make_latest_inputs(robot, resolve_topic)
        self.history = ObservationHistory(self.inputs)
        self.liveliness = ServerLiveliness(liveliness_lease_s, inbox.wake)
        self.connection = Connection(inbox.clock, on_change=on_change)
        self.queue = ActionQueue(DELAY_RULES[parameters.skip_rule])
        on_queue_empty = partial(
            self.connection.handle, ConnectionEvent.QUEUE_EMPTY, 'action queue empty'
        )
        self.controller = make_controller(parameters, robot, decisions, self.queue, on_queue_empty)

    def make_requester(
        self,
        transport: Transport,
        observations: ObservationReader,
        *,
        random: Callable[[], float] = random.random,
    ) -> Requester:
        """Build the requester; its first episode has the task of the parameters."""
        parameters = self.parameters
        pipeline = RequestPipeline(
            transport,
            RobotSession(self.inbox.client_id),
            RequestParts(self.history, observations, self.controller.take_executed),
            ChunkMerger(
                self.queue,
                len(self.robot.actions),
                step_s=1 / self.robot.fps,
                units=self.robot.action_units,
            ),
            status=self.status,
            clock=self.inbox.clock,
            listener=self.listener,
        )
        pipeline.set_episode(EpisodeRequest(parameters.task))
        servers = ServerSelection(
            parameters.server_names,
            first_backoff_s=parameters.reconnect_initial_backoff_s,
            max_backoff_s=parameters.reconnect_max_backoff_s,
            random=random,
        )
        return Requester(
            transport,
            pipeline,
            self.connection,
            servers,
            self.liveliness,
            self.inbox,
            settings=parameters,
        )

    def make_takeover(self, messages: PersonMessages) -> Takeover:
        """Build the takeover, with the device of the robot file if it names one."""
        if self.robot.intervention is None:
            return Takeover(None, self.decisions)
        device = PersonInput(
            self.robot,
            self.robot.intervention,
            messages,
            count_dropped=self.status.count_dropped,
        )
        return Takeover(device, self.decisions)

    def make_operator_control(self, requester: Requester, takeover: Takeover) -> OperatorControl:
        """Build the operator control; it idles the requester unless an episode runs on start."""
        return OperatorControl(
            self.controller,
            requester,
            takeover,
            self.decisions,
            run_on_start=self.parameters.run_on_start,
        )
