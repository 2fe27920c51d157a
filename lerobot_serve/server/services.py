"""
The services of the policy server, and what it does about sessions that ended. Executor thread.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, Protocol

from std_srvs.srv import Trigger

from lerobot_serve.server import preparation
from lerobot_serve.server.capture import NothingCaptured
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.reports import (
    accept,
    describe_load,
    describe_server,
    refuse,
    Standing,
)
from lerobot_serve.server.serving import Serving
from lerobot_serve.server.sessions import Session
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.server.watch import Watch
from lerobot_serve.telemetry.throttle import Throttle
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused, SessionAsk, tags_in_words
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode


class Host(Protocol):
    """The node, as its services need it."""

    # None unless configured
    serving: Serving | None
    standing: Standing
    parameters: ServerParameters

    def status(self) -> ServerStatus: ...

    def inform(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


class ReplyTopics(Protocol):
    """The robots' reply topics, as ros.replies has them."""

    def open(self, topic: str) -> None: ...

    def keep(self, topics: set[str]) -> None: ...

    def has_listener(self, topic: str) -> bool: ...


def described(ask: SessionAsk) -> str:
    """Return what a robot says of itself, for the log."""
    tags = tags_in_words(ask)
    return (ask.robot_type or '?') + (f' ({tags})' if tags else '')


class Services:
    """`read_ask` makes an ask of a request; it raises Refused."""

    def __init__(
        self,
        host: Host,
        replies: ReplyTopics,
        statistics: Statistics,
        watch: Watch,
        read_ask: Callable[[OpenSession.Request], SessionAsk],
        observation_topic: str,
    ) -> None:
        self._host, self._replies = host, replies
        self._statistics, self._watch = statistics, watch
        self._read_ask, self._observation_topic = read_ask, observation_topic
        self._throttle = Throttle(time.monotonic_ns)

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
            return refuse(response, Refusal.NOT_READY, f'not ready: {self._host.standing.text}')
        ask = None
        try:
            ask = self._read_ask(request)
            self._replies.open(ask.reply_topic)
            session, old = serving.open(ask, time.monotonic_ns())
        except Refused as refused:
            self._statistics.drop(f'refused_{refused.code.name.lower()}')
            # a robot asks again and again, and is refused as often
            text = f'refused {request.client_id!r}: {refused}'
            self._throttle.say(self._host.warn, (request.client_id, refused.code), text)
            self.end(serving, [])
            refuse(response, refused.code, str(refused))
            return describe_load(response, serving, ask)
        # asked twice is answered twice, and nothing that waits is lost
        self.end(serving, [old] if old else [], 'opened again')
        self._host.inform(f'opened {session.session_id} for {described(session.ask)}')
        accept(response, session, serving.served, self._observation_topic)
        return describe_load(response, serving, ask)

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
            response.text = preparation.no_session(*name)
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
            response.text = preparation.no_session(*name)
        return response

    def get_status(self, _: GetStatus.Request, response: GetStatus.Response) -> GetStatus.Response:
        parameters = self._host.parameters
        response.status = self._host.status()
        response.default_task = parameters.default_task
        response.task_pinned = parameters.pin_task
        return describe_server(response, self._host.serving)

    def capture(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            response.message = f'captured into {self._watch.capture()}'
            response.success = True
        except NothingCaptured as error:
            response.success, response.message = False, f'nothing is captured: {error}'
        return response

    def sweep(self, serving: Serving) -> None:
        """Close the sessions of robots that are gone, and tell repeats; now and then."""
        self._throttle.flush()
        ended = serving.sessions.sweep(time.monotonic_ns(), self._replies.has_listener)
        for session, reason in ended:
            self._statistics.drop(reason)
            self._host.warn(f'closed {session.session_id}: {reason}')
            self.end(serving, [session], reason)

    def end(self, serving: Serving, sessions: list[Session], why: str = '') -> None:
        """Free what was kept for sessions that ended, and reply topics that nobody needs."""
        serving.end(sessions, why)
        self._replies.keep({session.ask.reply_topic for session in serving.sessions})
