"""
The node policy_server: parameters and transitions in, requests in, chunks out.

The thread `intake` takes requests, `inference` owns the policy and its device. Of the executor's
two threads one goes through transitions, so that the other can answer clients meanwhile.
"""

from __future__ import annotations

from functools import partial
import time

from lifecycle_msgs.msg import State
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn

from lerobot_serve.policies import memory
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract import ask_from_request, refuse
from lerobot_serve.ros.lane import Lane
from lerobot_serve.ros.lifecycle import LifecycleNode
from lerobot_serve.ros.parameter_server import ParameterServer
from lerobot_serve.ros.predict_action import PredictAction
from lerobot_serve.ros.replies import Replies
from lerobot_serve.ros.runtime import run, Runtime, UserError
from lerobot_serve.ros.share import shared_file
from lerobot_serve.server import preparation
from lerobot_serve.server.mailbox import Mail, Mailbox
from lerobot_serve.server.one_shots import OneShots
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.reports import (
    accept,
    describe_load,
    describe_server,
    server_status,
    Standing,
)
from lerobot_serve.server.serving import Serving
from lerobot_serve.server.sessions import Session
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Unencodable
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused
from lerobot_serve_interfaces.msg import Observation, ServerStatus
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode

CLEANUP_S = 5.0


class PolicyServer(LifecycleNode):
    """See the module. Built in the main thread, which also sees to autostart and farewell."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('policy_server', context=runtime.context)
        self._settings = ParameterServer(self, ServerParameters, self._is_unconfigured)
        self._settings.on_change(self._change)
        self._statistics, self._mailbox = Statistics(), Mailbox()
        self._serving: Serving | None = None
        self._standing = Standing(ServerStatus.UNCONFIGURED, preparation.UNCONFIGURED_TEXT)
        self._replies = Replies(self)
        self._offer()
        runtime.thread('inference', self._run_inference, self._mailbox.close)
        runtime.thread('intake', partial(self._inbox.run, runtime.stop), self._inbox.wake)
        runtime.when_running(self._autostart)
        runtime.on_farewell(self.end)

    def _offer(self) -> None:
        """Create everything that the outside sees."""
        self._status_publisher = self.create_publisher(
            ServerStatus, '~/status', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        self._inbox = Lane(
            self, Observation, '~/observation', qos.OBSERVATION_INBOX, self._on_observation
        )
        self._inbox.add('~/shadow_observation', qos.SHADOW_INBOX, self._on_observation)
        self.create_service(OpenSession, '~/open_session', self._on_open)
        self.create_service(CloseSession, '~/close_session', self._on_close)
        self.create_service(ResetEpisode, '~/reset_episode', self._on_reset)
        self.create_service(GetStatus, '~/get_status', self._on_get_status)
        one_shots = OneShots(lambda: self._serving, lambda: self._standing)
        self._action = PredictAction(
            self, one_shots.predict, self._mailbox.forget, self._mailbox.__len__
        )
        self.create_timer(self._settings.current.status_period_s, self._on_timer)
        self._publish_status()

    # transitions: the main thread or one of the executor's

    def _autostart(self) -> None:
        if self._settings.current.autostart:
            for name in ('configure', 'activate'):
                if not self.step(name):
                    raise UserError(str(self.failure))

    def configure(self) -> None:
        """Load, verify and warm the policy. Raises PolicyError."""
        self._stand(ServerStatus.UNCONFIGURED, 'loading the policy')
        parameters = self._settings.current
        default = str(shared_file('config/policies/reach'))
        make = partial(preparation.worker, parameters, default, self._statistics)
        try:
            worker = self._mailbox.call(make)
        except Exception as error:
            self._stand(ServerStatus.FAILED, f'{error}; mend it and configure again')
            raise
        self._serving = preparation.serving(worker, self._mailbox, self._statistics, parameters)
        # loading took its time: what may change live may have changed
        self._change(self._settings.current)
        self._stand(ServerStatus.INACTIVE, 'loaded and warm; activate it to serve')

    def activate(self) -> None:
        """Take sessions."""
        self._serving.begin()
        self._stand(ServerStatus.ACTIVE)
        for note in self._serving.served.notes:
            self.get_logger().warning(note)
        what = preparation.in_words(self._serving.served)
        self.get_logger().info(f'serving {what} as {self.get_fully_qualified_name()}')

    def deactivate(self) -> None:
        """Drain: what is due is answered, new sessions are told to go elsewhere."""
        limit_s = self._settings.current.drain_s
        deadline = time.monotonic() + limit_s
        text = 'the server is going away; open a session elsewhere'
        self._serving.refuse(Refused(Refusal.DRAINING, text))
        self._stand(ServerStatus.DRAINING, text)
        waits = (
            self._serving.drain,
            self._action.wait_until_told,
            self._replies.wait_until_delivered,
        )
        if not all(wait(max(0.0, deadline - time.monotonic())) for wait in waits):
            self.get_logger().warning(f'answers were still due after drain_s ({limit_s:g} s)')
        self._stand(ServerStatus.INACTIVE, 'drained; activate it to serve again')

    def cleanup(self) -> None:
        """Close all sessions and let the policy go."""
        self._serving.close(CLEANUP_S)
        self._serving = None
        self._replies.keep(set())
        self._mailbox.call(memory.release, CLEANUP_S)
        self._stand(ServerStatus.UNCONFIGURED, preparation.UNCONFIGURED_TEXT)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        outcome = super().on_shutdown(state)
        self._stand(ServerStatus.UNCONFIGURED, 'shut down for good; start the process again')
        return outcome

    def _stand(self, state: int, text: str = '') -> None:
        self._standing = Standing(state, text)
        self._publish_status()

    def _is_unconfigured(self) -> bool:
        return self.lifecycle_state == State.PRIMARY_STATE_UNCONFIGURED

    # data path: intake, then inference

    def _on_observation(self, raw: bytes) -> None:
        serving = self._serving
        if serving is None:
            self._statistics.drop('no_session')
            return
        refused = serving.deposit(raw, time.monotonic_ns())
        if refused:
            session, chunk = refused
            self._replies.send(session.ask.reply_topic, wire_chunk.encode(chunk))

    def _run_inference(self) -> None:
        while mails := self._mailbox.take():
            self._answer(mails)
            # what a request holds must not outlive it
            del mails
        if self._serving:
            self._serving.worker.close()

    def _answer(self, mails: list[Mail]) -> None:
        serving = self._serving
        # none: they came while the policy was let go
        answers = serving.worker.answer(mails) if serving else ()
        for mail, chunk in answers:
            self._send(serving, mail, chunk)

    def _send(self, serving: Serving, mail: Mail, chunk: Chunk) -> None:
        if mail.use:
            mail.use(chunk)
            return
        try:
            raw = wire_chunk.encode(chunk)
        except Unencodable:
            # one robot's request must not end the service of the others
            self._statistics.drop('unanswerable')
            return
        is_open = partial(serving.is_open, mail)
        if not self._replies.send(mail.session.ask.reply_topic, raw, is_open):
            self._statistics.drop('session_closed')

    # control, executor thread

    def _on_open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        serving = self._serving
        if serving is None:
            return refuse(response, Refusal.NOT_READY, f'not ready: {self._standing.text}')
        ask = None
        try:
            ask = ask_from_request(request)
            self._replies.open(ask.reply_topic)
            session, old = serving.open(ask, time.monotonic_ns())
        except Refused as refused:
            self._statistics.drop(f'refused_{refused.code.name.lower()}')
            self.get_logger().warning(f'refused {request.client_id!r}: {refused}')
            self._end(serving, [])
            refuse(response, refused.code, str(refused))
            return describe_load(response, serving, ask)
        # asked twice is answered twice, and nothing that waits is lost
        self._end(serving, [old] if old else [])
        self.get_logger().info(f'opened {session.session_id} for {session.ask.robot_type or "?"}')
        accept(response, session, serving.served, self._inbox.topic_name)
        return describe_load(response, serving, ask)

    def _on_close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        serving = self._serving
        name = request.client_id, request.session_epoch
        session = serving.sessions.close(*name) if serving else None
        response.closed = session is not None
        if session:
            self._end(serving, [session])
        else:
            response.text = preparation.no_session(*name)
        return response

    def _on_reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        serving = self._serving
        name = request.client_id, request.session_epoch
        session = serving.sessions.find(*name) if serving else None
        response.acknowledged = session is not None
        if session:
            serving.begin_episode(session, request.episode)
        else:
            response.text = preparation.no_session(*name)
        return response

    def _on_get_status(
        self, _: GetStatus.Request, response: GetStatus.Response
    ) -> GetStatus.Response:
        parameters = self._settings.current
        response.status = self._status()
        response.default_task = parameters.default_task
        response.task_pinned = parameters.pin_task
        return describe_server(response, self._serving)

    # housekeeping, executor thread

    def _change(self, parameters: ServerParameters) -> None:
        if self._serving:
            preparation.change(self._serving, parameters)

    def _on_timer(self) -> None:
        serving = self._serving
        if serving:
            ended = serving.sessions.sweep(time.monotonic_ns(), self._replies.has_listener)
            for session, reason in ended:
                self._statistics.drop(reason)
                self.get_logger().warning(f'closed {session.session_id}: {reason}')
            if ended:
                self._end(serving, [session for session, _ in ended])
        self._publish_status()

    def _end(self, serving: Serving, sessions: list[Session]) -> None:
        """Free what was kept for sessions that ended, and reply topics that nobody needs."""
        serving.end(sessions, 'session_ended')
        self._replies.keep({session.ask.reply_topic for session in serving.sessions})

    def _publish_status(self) -> None:
        self._status_publisher.publish(self._status())

    def _status(self) -> ServerStatus:
        return server_status(
            self._serving,
            self._statistics,
            self._standing,
            stamp=self.get_clock().now().to_msg(),
            server=self.get_fully_qualified_name(),
            slot=self._settings.current.slot,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_server`."""
    return run(PolicyServer, arguments, executor_threads=2)


if __name__ == '__main__':
    raise SystemExit(main())
