# SPDX-License-Identifier: Apache-2.0
"""
Builds the plain parts of one edge controller, in the order of the data flow. The thread that
builds the node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import random

from lerobot_serve.edge import wiring
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.queue.delay_rules import DELAY_RULES
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.session.chunk_merging import ChunkMerger
from lerobot_serve.edge.session.connection import Connection, ConnectionChange, ConnectionEvent
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import EpisodeRequest, RequestPipeline, SessionStatus
from lerobot_serve.edge.session.request import ObservationReader, RequestParts, RobotSession
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.servers import ServerLiveliness
from lerobot_serve.edge.session.transport.transport import Transport
from lerobot_serve.edge.takeover import PersonInput, PersonMessages, Takeover
from lerobot_serve.session.failover import ServerSelection


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
        self.inputs = wiring.make_latest_inputs(robot, resolve_topic)
        self.history = ObservationHistory(self.inputs)
        self.liveliness = ServerLiveliness(liveliness_lease_s, inbox.wake)
        self.connection = Connection(inbox.clock, on_change=on_change)
        self.queue = ActionQueue(DELAY_RULES[parameters.skip_rule])
        on_queue_empty = partial(
            self.connection.handle, ConnectionEvent.QUEUE_EMPTY, 'action queue empty'
        )
        self.controller = wiring.make_controller(
            parameters, robot, decisions, self.queue, on_queue_empty
        )

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
