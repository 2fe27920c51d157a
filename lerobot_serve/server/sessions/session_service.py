"""
The services of the policy server, and what it does about sessions that ended. Executor thread.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, Protocol

from std_srvs.srv import Trigger

from lerobot_serve.server import assembly
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.messages import (
    fill_accepted,
    fill_load,
    fill_refused,
    fill_server,
    ServerState,
)
from lerobot_serve.server.observability.request_capture import NothingToCapture
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.telemetry.log_throttle import LogThrottle
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import format_tags, SessionRefused, SessionRequest
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode


class SessionServiceNode(Protocol):
    """The node, as its services need it."""

    # None unless configured
    serving: ServerCore | None
    standing: ServerState
    parameters: ServerParameters

    def status(self) -> ServerStatus: ...

    def inform(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


class ReplyTopicRegistry(Protocol):
    """The robots' reply topics, as ros.replies has them."""

    def open(self, topic: str) -> None: ...

    def retain(self, topics: set[str]) -> None: ...

    def has_subscriber(self, topic: str) -> bool: ...


def client_summary(ask: SessionRequest) -> str:
    """Return what a robot says of itself, for the log."""
    tags = format_tags(ask)
    return (ask.robot_type or '?') + (f' ({tags})' if tags else '')


class SessionService:
    """`read_ask` makes an ask of a request; it raises Refused."""

    def __init__(
        self,
        host: SessionServiceNode,
        replies: ReplyTopicRegistry,
        statistics: ServerStatistics,
        watch: RequestObserver,
        read_ask: Callable[[OpenSession.Request], SessionRequest],
        observation_topic: str,
    ) -> None:
        self._host, self._replies = host, replies
        self._statistics, self._watch = statistics, watch
        self._read_ask, self._observation_topic = read_ask, observation_topic
        self._throttle = LogThrottle(time.monotonic_ns)

    def table(self) -> tuple[tuple[type, str, Callable[..., Any]], ...]:
        """Return type, name and callback of each service."""
        return (
            (OpenSession, 'open_session', self.open),
            (CloseSession, 'close_session', self.close),
            (ResetEpisode, 'reset_episode', self.reset),
            (GetStatus, 'get_status', self.get_status),
            (Trigger, 'capture', self.capture),
        )

    def open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        serving = self._host.serving
        if serving is None:
            return fill_refused(
                response, Refusal.NOT_READY, f'not ready: {self._host.standing.text}'
            )
        ask = None
        try:
            ask = self._read_ask(request)
            self._replies.open(ask.reply_topic)
            session, old = serving.open(ask, time.monotonic_ns())
        except SessionRefused as refused:
            self._statistics.drop(f'refused_{refused.code.name.lower()}')
            # a robot asks again and again, and is refused as often
            text = f'refused {request.client_id!r}: {refused}'
            self._throttle.emit(self._host.warn, (request.client_id, refused.code), text)
            self.end(serving, [])
            fill_refused(response, refused.code, str(refused))
            return fill_load(response, serving, ask)
        # asked twice is answered twice, and nothing that waits is lost
        self.end(serving, [old] if old else [], 'opened again')
        self._host.inform(f'opened {session.session_id} for {client_summary(session.ask)}')
        fill_accepted(response, session, serving.served, self._observation_topic)
        return fill_load(response, serving, ask)

    def close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        serving = self._host.serving
        name = request.client_id, request.session_epoch
        session = serving.sessions.close(*name) if serving else None
        response.closed = session is not None
        if session:
            self.end(serving, [session], 'closed by its robot')
        else:
            response.text = assembly.no_session_text(*name)
        return response

    def reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        serving = self._host.serving
        name = request.client_id, request.session_epoch
        session = serving.sessions.find(*name) if serving else None
        response.acknowledged = session is not None
        if session:
            serving.begin_episode(session, request.episode)
        else:
            response.text = assembly.no_session_text(*name)
        return response

    def get_status(self, _: GetStatus.Request, response: GetStatus.Response) -> GetStatus.Response:
        parameters = self._host.parameters
        response.status = self._host.status()
        response.default_task = parameters.default_task
        response.task_pinned = parameters.pin_task
        return fill_server(response, self._host.serving)

    def capture(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            response.message = f'captured into {self._watch.capture()}'
            response.success = True
        except NothingToCapture as error:
            response.success, response.message = False, f'nothing is captured: {error}'
        return response

    def sweep(self, serving: ServerCore) -> None:
        """Close the sessions of robots that are gone, and tell repeats; now and then."""
        self._throttle.flush()
        ended = serving.sessions.sweep(time.monotonic_ns(), self._replies.has_subscriber)
        for session, reason in ended:
            self._statistics.drop(reason)
            self._host.warn(f'closed {session.session_id}: {reason}')
            self.end(serving, [session], reason)

    def end(self, serving: ServerCore, sessions: list[Session], why: str = '') -> None:
        """Free what was kept for sessions that ended, and reply topics that nobody needs."""
        serving.end(sessions, why)
        self._replies.retain({session.ask.reply_topic for session in serving.sessions})
