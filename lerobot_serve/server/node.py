"""
The node policy_server: parameters and transitions in, requests in, chunks out.

The thread `intake` takes requests, `inference` owns the policy and its device. A transition has a
thread of its own, so that the executor can answer clients meanwhile.
"""

from __future__ import annotations

from functools import partial
import time

from lifecycle_msgs.msg import State
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn

from lerobot_serve.policies.resources import memory, memory_reservation
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.predict_chunk_action import PredictChunkAction
from lerobot_serve.ros.contract.reply_publishers import ReplyPublishers
from lerobot_serve.ros.contract.session_messages import (
    NO_EVENTS,
    NO_SESSION_TOPIC,
    session_request_from_message,
)
from lerobot_serve.ros.node.lifecycle import LifecycleNode
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.service_events import enable_service_events
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run, UserError
from lerobot_serve.ros.topics.dedicated_subscription import DedicatedSubscription
from lerobot_serve.server import assembly
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference.one_shot_requests import OneShotRequests
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.messages import server_status_message, ServerState
from lerobot_serve.server.observability import metrics
from lerobot_serve.server.observability.request_observer import make_request_observer, NodeContext
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_service import SessionService
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Unencodable
from lerobot_serve.wire.schema import Refusal, Status
from lerobot_serve.wire.session import SessionRefused
from lerobot_serve_interfaces.msg import ActionChunk, Observation, ServerStatus
from lerobot_serve_interfaces.srv import OpenSession

CLEANUP_TIMEOUT_S = 5.0
# ros2 launch gives a process five seconds to stop, and draining may have taken most of them
DELIVERY_TIMEOUT_S = 0.2
# a recorder, for example; the middleware takes seconds to miss one that was killed
REPLIES_UNACKNOWLEDGED = 'a listener, dead or alive, had not taken the last answers'


class PolicyServer(LifecycleNode):
    """See the module. Built in the main thread, which also sees to autostart and farewell."""

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('policy_server', runtime)
        self._settings = NodeParameters(
            self, ServerParameters, self._is_unconfigured, assembly.check_policy_path_change
        )
        self._settings.on_change(self._change)
        self._statistics, self._request_queue = ServerStatistics(), RequestQueue()
        here = NodeContext(
            self.get_fully_qualified_name(), time.monotonic_ns, self.warn, self.inform
        )
        self._watch = make_request_observer(lambda: self.parameters, self._statistics, here)
        self.serving: ServerCore | None = None
        self.standing = ServerState(ServerStatus.UNCONFIGURED, assembly.UNCONFIGURED_TEXT)
        self._replies = ReplyPublishers(self)
        self._offer()
        endpoint = metrics.start_endpoint(
            self.parameters, self._statistics, self._now, self._watch.losses
        )
        if endpoint:
            runtime.on_close(endpoint.close)
        tellers = [
            runtime.thread('inference', self._run_inference, self._request_queue.close),
            runtime.thread('intake', partial(self._inbox.run, runtime.stop), self._inbox.wake),
        ]
        self._watch.start(runtime.thread, runtime.stop, tellers)
        runtime.on_started(self._autostart)
        runtime.before_shutdown(self._farewell)

    def _offer(self) -> None:
        """Create everything that the outside sees."""
        self._status_publisher = self.create_publisher(
            ServerStatus, '~/status', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        # a robot whose session is not known has no topic of its own here
        self._no_session = self.create_publisher(
            ActionChunk, f'~/{NO_SESSION_TOPIC}', qos.NO_SESSION, event_callbacks=NO_EVENTS
        )
        self._inbox = DedicatedSubscription(
            self, Observation, '~/observation', qos.OBSERVATION_READER, self._on_observation
        )
        self._inbox.add(
            '~/shadow_observation', qos.SHADOW_OBSERVATION_READER, self._on_observation
        )
        self._offered = SessionService(
            self,
            self._replies,
            self._statistics,
            self._watch,
            session_request_from_message,
            self._inbox.topic_name,
        )
        for kind, name, callback in self._offered.table():
            service = self.create_service(kind, f'~/{name}', callback, qos_profile=qos.SERVICES)
            if kind is OpenSession:
                enable_service_events(self, service)
        one_shots = OneShotRequests(lambda: self.serving, lambda: self.standing)
        self._action = PredictChunkAction(
            self, one_shots.predict, self._withdraw, self._request_queue.__len__
        )
        self.create_timer(self.parameters.status_period_s, self._on_timer)
        self._publish_status()

    # transitions: the main thread or one of their own

    def _autostart(self) -> None:
        if self.parameters.autostart:
            for name in ('configure', 'activate'):
                if not self.run_transition(name):
                    raise UserError(str(self.failure))

    def _farewell(self) -> None:
        """Drain; who was not answered in time is told so."""
        self.deactivate_at_exit()
        serving = self.serving
        given_up = serving.give_up() if serving else []
        for mail, chunk in given_up:
            self._send(serving, mail, chunk)
        if given_up:
            self._replies.wait_until_delivered(DELIVERY_TIMEOUT_S)

    def configure(self) -> None:
        """Load, verify and warm the policy. Raises PolicyError."""
        self._stand(ServerStatus.UNCONFIGURED, 'loading the policy')
        parameters = self.parameters
        reserve = partial(
            memory_reservation.reserve, tell=self.warn, stopped=self._runtime.stop.wait
        )
        make = partial(assembly.load_worker, parameters, '', self._statistics, reserve)
        try:
            worker = self._request_queue.call(make)
        except Exception as error:
            self._stand(ServerStatus.FAILED, f'{error}; mend it and configure again')
            raise
        self.serving = assembly.make_core(
            worker, self._request_queue, self._statistics, parameters, self._watch
        )
        self.serving.send_no_session = self._answer_stranger
        self._watch.serves(self.serving.served)
        # loading took its time: what may change live may have changed
        self._change(self.parameters)
        self._stand(ServerStatus.INACTIVE, 'loaded and warm; activate it to serve')

    def activate(self) -> None:
        """Take sessions."""
        self.serving.begin()
        self._stand(ServerStatus.ACTIVE)
        for note in self.serving.served.notes:
            self.warn(note)
        what = assembly.policy_summary(self.serving.served)
        self.inform(f'serving {what} as {self.get_fully_qualified_name()}')

    def deactivate(self) -> None:
        """Drain: what is due is answered, new sessions are told to go elsewhere."""
        limit_s = self.parameters.drain_s
        deadline = time.monotonic() + limit_s
        text = 'the server is going away; open a session elsewhere'
        self.serving.refuse(SessionRefused(Refusal.DRAINING, text))
        self._stand(ServerStatus.DRAINING, text)
        waits = {
            'answers were still due': self.serving.drain,
            'goals were not told how they ended': self._action.wait_until_replied,
            REPLIES_UNACKNOWLEDGED: self._replies.wait_until_delivered,
        }
        lacking = (
            what for what, wait in waits.items() if not wait(max(0.0, deadline - time.monotonic()))
        )
        if what := next(lacking, ''):
            self.warn(f'{what} after drain_s ({limit_s:g} s)')
        self._stand(ServerStatus.INACTIVE, 'drained; activate it to serve again')

    def cleanup(self) -> None:
        """Close all sessions and let the policy go."""
        self.serving.close(CLEANUP_TIMEOUT_S)
        self.serving = None
        self._watch.serves(None)
        self._replies.retain(set())
        self._request_queue.call(memory.release_unused, CLEANUP_TIMEOUT_S)
        self._stand(ServerStatus.UNCONFIGURED, assembly.UNCONFIGURED_TEXT)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        outcome = super().on_shutdown(state)
        self._stand(ServerStatus.UNCONFIGURED, 'shut down for good; start the process again')
        return outcome

    def _stand(self, state: int, text: str = '') -> None:
        before, self.standing = self.standing, ServerState(state, text)
        self._watch.stood(before.name, self.standing.name, text)
        self._publish_status()

    @property
    def parameters(self) -> ServerParameters:
        return self._settings.current

    def inform(self, text: str) -> None:
        self.get_logger().info(text)

    def warn(self, text: str) -> None:
        self.get_logger().warning(text)

    def _now(self) -> metrics.ServerSnapshot:
        return metrics.ServerSnapshot(self.serving, self.standing)

    def _is_unconfigured(self) -> bool:
        return self.lifecycle_state == State.PRIMARY_STATE_UNCONFIGURED

    # data path: intake, then inference

    def _on_observation(self, raw: bytes) -> None:
        serving = self.serving
        if serving is None:
            self._statistics.drop('no_session')
            return
        refused = serving.deposit(raw, time.monotonic_ns())
        if refused:
            self._send(serving, *refused)

    def _answer_stranger(self, chunk: Chunk) -> None:
        self._no_session.publish(wire_chunk.encode(chunk))

    def _run_inference(self) -> None:
        while mails := self._request_queue.take():
            self._answer(mails)
            # what a request holds must not outlive it
            del mails
        if self.serving:
            self.serving.worker.close()

    def _answer(self, mails: list[QueuedRequest]) -> None:
        serving = self.serving
        if serving is None:
            # they came while the policy was let go
            for mail in mails:
                self._statistics.drop('session_ended', has_request_record=True)
                self._watch.lost(mail, 'session_ended')
                if mail.use:
                    mail.use(assembly.not_ready_chunk(mail.raw, self.standing.text))
            return
        for mail, chunk in serving.worker.answer(mails):
            self._send(serving, mail, chunk)

    def _send(self, serving: ServerCore, mail: QueuedRequest, chunk: Chunk) -> None:
        raw, lost = b'', ''
        try:
            raw = wire_chunk.encode(chunk)
        except Unencodable:
            # one robot's request must not end the service of the others
            lost = 'unanswerable'
        if mail.use:
            mail.use(chunk)
            lost = ''
        elif not lost:
            is_open = partial(serving.is_open, mail)
            if not self._replies.send(mail.session.ask.reply_topic, raw, is_open):
                lost = 'session_closed'
        if lost:
            self._statistics.drop(lost, has_request_record=True)
        elif chunk.status == Status.OK:
            self._statistics.answered((time.monotonic_ns() - mail.arrived_ns) / 1e9)
        self._watch.answered(mail, chunk, raw, lost)

    # housekeeping, executor thread

    def _withdraw(self, key: str) -> bool:
        """Take back a request without a session; False when the policy works on it already."""
        mail = self._request_queue.withdraw_one_shot(key)
        if mail:
            self._watch.lost(mail, 'withdrawn')
        return mail is not None

    def _change(self, parameters: ServerParameters) -> None:
        self._watch.changed(parameters)
        if self.serving:
            assembly.apply_live_parameters(self.serving, parameters)

    def _on_timer(self) -> None:
        if self.serving:
            self._offered.sweep(self.serving)
        self._watch.look()
        self._publish_status()

    def _publish_status(self) -> None:
        self._status_publisher.publish(self.status())

    def status(self) -> ServerStatus:
        return server_status_message(
            self.serving,
            self._statistics,
            self.standing,
            stamp=self.get_clock().now().to_msg(),
            server=self.get_fully_qualified_name(),
            slot=self.parameters.slot,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_server`."""
    return run(PolicyServer, arguments, NodeCommand('policy_server', ServerParameters))


if __name__ == '__main__':
    raise SystemExit(main())
