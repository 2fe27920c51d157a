# SPDX-License-Identifier: Apache-2.0
"""The services of the policy server, and the cleanup after closed sessions. Executor thread."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, Protocol

from std_srvs.srv import Trigger

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import (
    check_ros_reply_topic,
    format_tags,
    SessionRefused,
)
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference.request_validation import no_session_text
from lerobot_serve.server.messages import (
    fill_accepted,
    fill_load,
    fill_refused,
    fill_server,
    ServerNode,
)
from lerobot_serve.server.observability.request_capture import NothingToCapture
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.telemetry.log_throttle import LogThrottle
from lerobot_serve_interfaces.msg import Extension
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode


class ReplyTopicRegistry(Protocol):
    """The reply topics of the clients, see ros.contract.reply_publishers."""

    def open(self, topic: str) -> None: ...

    def retain(self, topics: set[str]) -> None: ...

    def has_subscriber(self, topic: str) -> bool: ...

    def offers(self, topic: str) -> list[Extension]: ...


def client_summary(session_request: OpenSessionRequest) -> str:
    """Return robot type and tags of a client, for the log."""
    tags = format_tags(session_request)
    return (session_request.robot_type or '?') + (f' ({tags})' if tags else '')


class SessionService:
    """`read_session_request` reads the ROS request; it raises SessionRefused."""

    def __init__(
        self,
        node: ServerNode,
        replies: ReplyTopicRegistry,
        statistics: ServerStatistics,
        observer: RequestObserver,
        read_session_request: Callable[[OpenSession.Request], OpenSessionRequest],
        observation_topic: str,
    ) -> None:
        self._node, self._replies = node, replies
        self._statistics, self._observer = statistics, observer
        self._read_session_request, self._observation_topic = (
            read_session_request,
            observation_topic,
        )
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
        self,
        request: OpenSession.Request,
        response: OpenSession.Response,
        *,
        over_ros: bool = False,
    ) -> OpenSession.Response:
        core = self._node.core
        if core is None:
            return fill_refused(
                response, Refusal.NOT_READY, f'not ready: {self._node.server_state.text}'
            )
        session_request = None
        try:
            session_request = self._read_session_request(request)
            if over_ros:
                check_ros_reply_topic(session_request)
            self._replies.open(session_request.reply_topic)
            known = core.sessions.current(session_request.client_id)
            session, old = core.open(session_request, time.monotonic_ns())
        except SessionRefused as refused:
            self._statistics.record_drop(f'refused_{refused.code.name.lower()}')
            # a client retries and is refused each time
            text = f'refused {request.client_id!r}: {refused}'
            self._throttle.emit(self._node.log_warning, (request.client_id, refused.code), text)
            self.end_sessions(core, [])
            fill_refused(response, refused.code, str(refused))
            return fill_load(response, core, session_request)
        # a repeated request gets the same session, and its queued request stays
        self.end_sessions(core, [old] if old else [], 'replaced by a new session')
        # a router repeats the request to keep an unused session open
        if session is not known:
            self._log_opened(session)
        fill_accepted(response, session, core.description, self._observation_topic)
        response.extensions.extend(self._replies.offers(session_request.reply_topic))
        return fill_load(response, core, session_request)

    def _log_opened(self, session: Session) -> None:
        self._node.log_info(f'opened {session.session_id} for {client_summary(session.request)}')

    def close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        core = self._node.core
        name = request.client_id, request.session_epoch
        session = core.sessions.close(*name) if core else None
        response.closed = session is not None
        if core and session:
            self.end_sessions(core, [session], 'closed by the client')
        else:
            response.text = no_session_text(*name)
        return response

    def reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        core = self._node.core
        name = request.client_id, request.session_epoch
        session = core.sessions.find(*name) if core else None
        response.acknowledged = session is not None
        if core and session:
            core.start_episode(session, request.episode)
        else:
            response.text = no_session_text(*name)
        return response

    def get_status(self, _: GetStatus.Request, response: GetStatus.Response) -> GetStatus.Response:
        parameters = self._node.parameters
        response.status = self._node.status()
        response.default_task = parameters.default_task
        response.task_pinned = parameters.pin_task
        return fill_server(response, self._node.core)

    def capture(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            response.message = f'captured into {self._observer.capture()}'
            response.success = True
        except NothingToCapture as error:
            response.success, response.message = False, f'Nothing captured: {error}'
        return response

    def close_expired(self, core: ServerCore) -> None:
        """Close the sessions of lost clients and log suppressed repeats; called periodically."""
        self._throttle.flush()
        ended = core.sessions.close_expired(time.monotonic_ns(), self._replies.has_subscriber)
        for session, reason in ended:
            self._statistics.record_drop(reason)
            self._node.log_warning(f'closed {session.session_id}: {reason}')
            self.end_sessions(core, [session], reason)

    def end_sessions(self, core: ServerCore, sessions: list[Session], why: str = '') -> None:
        """Discard the state of closed sessions and the reply topics without a session."""
        core.end_sessions(sessions, why)
        self._replies.retain({session.request.reply_topic for session in core.sessions})
