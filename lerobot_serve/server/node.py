"""The node policy_server: parameters in, requests in, chunks out."""

from __future__ import annotations

from functools import partial
import threading
import time

from rclpy.node import Node
from rclpy.publisher import Publisher

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract import (
    ask_from_request,
    refuse,
    reply_publisher,
)
from lerobot_serve.ros.lane import Lane
from lerobot_serve.ros.parameter_server import ParameterServer
from lerobot_serve.ros.runtime import run, Runtime, UserError
from lerobot_serve.ros.share import shared_file
from lerobot_serve.server.mailbox import Mailbox
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.reports import describe_policy, server_status
from lerobot_serve.server.sessions import Rules, Session, SessionTable
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.server.worker import PolicyFailed, Worker
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import peek
from lerobot_serve.wire.schema import (
    FINGERPRINT_LIMIT,
    MsgType,
    Refusal,
    SCHEMA_VERSION,
    SCHEMA_VERSION_MIN,
)
from lerobot_serve.wire.session import Refused
from lerobot_serve_interfaces.msg import Observation, ServerStatus
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode


class PolicyServer(Node):
    """
    The thread `intake` takes requests, `inference` owns the policy, the executor does the rest.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('policy_server', context=runtime.context)
        self._settings = ParameterServer(self, ServerParameters)
        self._settings.on_change(self._change_rules)
        parameters = self._settings.current
        policy = load_policy(parameters)
        self._served = policy.describe()
        self._sessions = SessionTable(self._served, rules(parameters))
        self._statistics, self._mailbox = Statistics(), Mailbox()
        self._reply_publishers: dict[str, Publisher] = {}
        # the worker publishes while the executor may end a session
        self._publishing = threading.Lock()
        self._worker = Worker(
            policy,
            slot=parameters.slot,
            statistics=self._statistics,
            image_threads=parameters.image_threads,
        )
        warm_up(self._worker, parameters)
        self._offer()
        self.create_timer(parameters.status_period_s, self._on_timer)
        self._publish_status()
        runtime.thread('inference', self._run_worker, self._mailbox.close)
        runtime.thread('intake', partial(self._inbox.run, runtime.stop), self._inbox.wake)
        self.get_logger().info(
            f'serving {self._served.fingerprint} ({self._served.policy_type}) on '
            f'{self._served.device} as {self.get_fully_qualified_name()}'
        )

    def _offer(self) -> None:
        """Create everything that the outside sees."""
        self._status_publisher = self.create_publisher(
            ServerStatus, '~/status', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        self._inbox = Lane(
            self, Observation, '~/observation', qos.OBSERVATION_INBOX, self._on_observation
        )
        self.create_service(OpenSession, '~/open_session', self._on_open)
        self.create_service(CloseSession, '~/close_session', self._on_close)
        self.create_service(ResetEpisode, '~/reset_episode', self._on_reset)
        self.create_service(GetStatus, '~/get_status', self._on_get_status)

    # data path: intake, then inference

    def _on_observation(self, raw: bytes) -> None:
        now_ns = time.monotonic_ns()
        try:
            header, client_id, _ = peek(raw)
        except Malformed as error:
            self._statistics.drop(error.reason)
            return
        session = self._sessions.find(client_id, header.session_epoch)
        if session is None or header.msg_type != MsgType.OBSERVATION:
            self._statistics.drop('wrong_type' if session else 'no_session')
            return
        self._sessions.heard(client_id, now_ns)
        superseded = self._mailbox.put(session, raw, now_ns)
        self._statistics.arrived(superseded=superseded)

    def _run_worker(self) -> None:
        self._worker.run(self._mailbox, self._send)

    def _send(self, reply_topic: str, raw: bytes) -> None:
        with self._publishing:
            publisher = self._reply_publishers.get(reply_topic)
            if publisher:
                publisher.publish(raw)
                return
        self._statistics.drop('session_closed')

    # control, executor thread

    def _on_open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        try:
            ask = ask_from_request(request)
            self._make_publisher(ask.reply_topic)
            old = self._sessions.current(ask.client_id)
            session = self._sessions.open(ask, time.monotonic_ns())
        except Refused as refused:
            self._statistics.drop(f'refused_{refused.code.name.lower()}')
            self.get_logger().warning(f'refused {request.client_id!r}: {refused}')
            self._forget([])
            return self._describe_load(refuse(response, refused.code, str(refused)))
        # asked twice is answered twice, and nothing that waits is lost
        self._forget([old] if old and old is not session else [])
        self.get_logger().info(f'opened {session.session_id} for {session.ask.robot_type or "?"}')
        return self._describe_load(self._accept(session, response))

    def _accept(self, session: Session, response: OpenSession.Response) -> OpenSession.Response:
        served = self._served
        response.accepted, response.code = True, int(Refusal.OK)
        response.warnings = list(session.warnings)
        response.schema_version = session.schema_version
        response.session_epoch = session.ask.session_epoch
        response.session_id = session.session_id
        response.observation_topic = self._inbox.topic_name
        response.policy_type, response.state_class = served.policy_type, int(served.state_class)
        response.warmed_up, response.codec = True, session.ask.codec
        describe_policy(response, served)
        return response

    def _describe_load(self, response: OpenSession.Response) -> OpenSession.Response:
        response.policy = self._served.fingerprint
        response.load = self._statistics.load(time.monotonic_ns())
        response.predicted_delay_ms = self._statistics.percentile_ms('inference', 50) * (
            1 + len(self._mailbox)
        )
        response.active_sessions = len(self._sessions)
        response.max_sessions = self._sessions.rules.max_sessions
        return response

    def _on_close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        session = self._sessions.close(request.client_id, request.session_epoch)
        response.closed = session is not None
        if session:
            self._forget([session])
        else:
            response.text = (
                f'{request.client_id!r} has no session of epoch {request.session_epoch}'
            )
        return response

    def _on_reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        session = self._sessions.find(request.client_id, request.session_epoch)
        response.acknowledged = session is not None
        if session:
            if self._mailbox.forget_episodes_before(request.client_id, request.episode):
                self._statistics.drop('episode_ended')
            self._worker.forget(session.session_id)
        else:
            response.text = (
                f'{request.client_id!r} has no session of epoch {request.session_epoch}'
            )
        return response

    def _on_get_status(
        self, _: GetStatus.Request, response: GetStatus.Response
    ) -> GetStatus.Response:
        parameters = self._settings.current
        response.status = self._status()
        response.schema_version_min = SCHEMA_VERSION_MIN
        response.schema_version_max = SCHEMA_VERSION
        response.default_task = parameters.default_task
        response.task_pinned = parameters.pin_task
        describe_policy(response, self._served)
        return response

    # housekeeping

    def _change_rules(self, parameters: ServerParameters) -> None:
        changed = rules(parameters)
        self._sessions.change_rules(
            max_sessions=changed.max_sessions, grace_ns=changed.grace_ns, idle_ns=changed.idle_ns
        )

    def _on_timer(self) -> None:
        silent = self._sessions.expire(time.monotonic_ns())
        for session in silent:
            self._statistics.drop('session_idle')
            self.get_logger().warning(f'closed {session.session_id}: silent for too long')
        self._forget(silent)
        self._publish_status()

    def _forget(self, sessions: list[Session]) -> None:
        """Free what was kept for sessions that ended, and reply topics that nobody needs."""
        for session in sessions:
            if self._mailbox.forget(session.ask.client_id):
                self._statistics.drop('session_ended')
            self._worker.forget(session.session_id)
        needed = {session.ask.reply_topic for session in self._sessions}
        with self._publishing:
            for topic in [t for t in self._reply_publishers if t not in needed]:
                self.destroy_publisher(self._reply_publishers.pop(topic))

    def _make_publisher(self, topic: str) -> None:
        """Publish on a client's topic. Raises Refused."""
        if topic not in self._reply_publishers:
            self._reply_publishers[topic] = reply_publisher(self, topic)

    def _publish_status(self) -> None:
        self._status_publisher.publish(self._status())

    def _status(self) -> ServerStatus:
        return server_status(
            self._served,
            self._statistics,
            self._sessions,
            stamp=self.get_clock().now().to_msg(),
            server=self.get_fully_qualified_name(),
            slot=self._settings.current.slot,
            now_ns=time.monotonic_ns(),
        )


def rules(parameters: ServerParameters) -> Rules:
    return Rules(
        parameters.max_sessions,
        parameters.default_task,
        parameters.pin_task,
        parameters.strict_fps,
        int(parameters.session_grace_s * 1e9),
        int(parameters.session_idle_s * 1e9),
    )


def load_policy(parameters: ServerParameters):
    """Return the policy. Raises UserError."""
    path = parameters.policy_path
    if parameters.policy_kind == 'builtin' and not path:
        path = shared_file('config/policies/reach')
    try:
        policy = registry.load(parameters.policy_kind, str(path), parameters.device)
    except PolicyError as error:
        raise UserError(str(error)) from error
    fingerprint = policy.describe().fingerprint
    if len(fingerprint.encode()) > FINGERPRINT_LIMIT:
        raise UserError(
            f'the fingerprint {fingerprint[:40]!r}... is over {FINGERPRINT_LIMIT} bytes'
        )
    return policy


def warm_up(worker: Worker, parameters: ServerParameters) -> None:
    """Run the policy before the first robot does. Raises UserError."""
    try:
        worker.warm_up(parameters.warmup_inferences)
    except PolicyFailed as error:
        raise UserError(f'the policy fails on an empty observation: {error}') from error


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_server`."""
    return run(PolicyServer, arguments)


if __name__ == '__main__':
    raise SystemExit(main())
