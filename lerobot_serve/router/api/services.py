# SPDX-License-Identifier: Apache-2.0
"""
The services of the router. The executor's thread; slow work runs in the thread `control` and is
awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
import threading
from typing import Any, Protocol

from lerobot_serve.router.api.messages import merge_replies
from lerobot_serve.router.api.slot_commands import run_slot_command, SlotCommandRejected
from lerobot_serve.router.data_path.replica_transport import DRAINING_TEXT
from lerobot_serve.router.monitoring import reports
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.runtime import RouterRuntime
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import SessionRefused, SessionRequest
from lerobot_serve_interfaces.msg import EpisodeOutcome, ServerStatus
from lerobot_serve_interfaces.srv import (
    CloseSession,
    ControlSlot,
    GetStatus,
    OpenSession,
    ReportOutcome,
    ResetEpisode,
)

NOT_CONFIGURED = 'the router is not configured; configure and activate it'


class ServiceHost(Protocol):
    """The node, as its services need it."""

    # None unless configured
    routing: RouterRuntime | None
    # a state of ServerStatus, and in words
    standing: tuple[int, str]

    def later(self, routing: RouterRuntime, work: Callable[[], Any]) -> Awaitable[Any]: ...

    def poll(self) -> None: ...

    def status(self) -> ServerStatus: ...

    def warn(self, text: str) -> None: ...


class ReplyTopicManager(Protocol):
    """The reply topics of clients, as ros.replies has them."""

    def open(self, topic: str) -> None: ...

    def retain(self, topics: set[str]) -> None: ...


class RouterServices:
    """`read_ask` converts a request; it raises SessionRefused."""

    def __init__(
        self,
        host: ServiceHost,
        replies: ReplyTopicManager,
        drops: DropCounters,
        read_ask: Callable[[OpenSession.Request], SessionRequest],
        observation_topic: str,
    ) -> None:
        self._host, self._replies, self._drops = host, replies, drops
        self._read_ask, self._observation_topic = read_ask, observation_topic
        # reply topics of sessions that are being opened
        self._opening: list[str] = []
        # no topic may be opened while unused ones are closed
        self._keeping = threading.Lock()

    def table(self) -> tuple[tuple[type, str, Callable[..., Any], bool], ...]:
        """Return type, name and callback of each service, and whether the callback awaits."""
        return (
            (OpenSession, 'open_session', self.open, True),
            (CloseSession, 'close_session', self.close, True),
            (ResetEpisode, 'reset_episode', self.reset, True),
            (GetStatus, 'get_status', self.get_status, False),
            (ControlSlot, 'control_slot', self.control_slot, False),
            (ReportOutcome, 'report_outcome', self.report_outcome, False),
        )

    async def open(
        self, request: OpenSession.Request, response: OpenSession.Response
    ) -> OpenSession.Response:
        routing = self._host.routing
        with self._keeping:
            self._opening.append(request.reply_topic)
        try:
            if routing is None or not routing.is_open:
                raise self._not_ready(routing)
            ask = self._read_ask(request)
            with self._keeping:
                self._replies.open(ask.reply_topic)
            return await self._host.later(routing, partial(self._open, routing, ask))
        except SessionRefused as refused:
            self._drops.add(f'refused_{refused.code.name.lower()}')
            self._host.warn(f'refused {request.client_id!r}: {refused}')
            response.accepted, response.code = False, int(refused.code)
            response.reason = str(refused)[:2048]
            return response
        finally:
            with self._keeping:
                self._opening.remove(request.reply_topic)
            self.keep_replies()

    def _not_ready(self, routing: RouterRuntime | None) -> SessionRefused:
        if routing and routing.is_drained:
            return SessionRefused(Refusal.DRAINING, DRAINING_TEXT)
        return SessionRefused(Refusal.NOT_READY, f'not ready: {self._host.standing[1]}')

    def _open(self, routing: RouterRuntime, ask: SessionRequest) -> OpenSession.Response:
        """Open a session. Thread `control`. Raises SessionRefused."""
        if not routing.is_open:
            raise self._not_ready(routing)
        opened = routing.core.control.open(ask)
        try:
            return merge_replies(opened, self._observation_topic)
        except SessionRefused:
            routing.close_session(ask.client_id, ask.session_epoch)
            raise

    async def close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        routing, name = self._host.routing, (request.client_id, request.session_epoch)
        try:
            close = partial(routing.close_session, *name) if routing else None
            response.closed = bool(close and await self._host.later(routing, close))
        except SessionRefused as refused:
            response.text = str(refused)
        if not (response.closed or response.text):
            response.text = f'{name[0]!r} has no session of epoch {name[1]}'
        self.keep_replies()
        return response

    async def reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        routing = self._host.routing
        if routing is None:
            response.text = NOT_CONFIGURED
            return response
        reset = partial(routing.core.control.reset, request)
        try:
            texts = await self._host.later(routing, reset)
        except SessionRefused as refused:
            texts = [str(refused)]
        response.acknowledged, response.text = not texts, '; '.join(texts)[:1024]
        return response

    def keep_replies(self) -> None:
        """Close reply topics without a session."""
        routing = self._host.routing
        with self._keeping:
            robots = routing.core.dispatcher.robots if routing else ()
            self._replies.retain({*self._opening, *(robot.ask.reply_topic for robot in robots)})

    def get_status(self, _: GetStatus.Request, response: GetStatus.Response) -> GetStatus.Response:
        routing = self._host.routing
        response.status = self._host.status()
        return reports.fill_status_reply(response, routing.core if routing else None)

    def control_slot(
        self, request: ControlSlot.Request, response: ControlSlot.Response
    ) -> ControlSlot.Response:
        routing = self._host.routing
        try:
            if routing is None:
                raise SlotCommandRejected(NOT_CONFIGURED)
            text = run_slot_command(
                routing.core,
                request.command,
                request.slot,
                request.reason,
                at_once=request.move_running_episodes,
            )
        except SlotCommandRejected as error:
            response.text = str(error)[:1024]
        else:
            response.success, response.text = True, text[:1024]
            self._host.warn(f'{text} (an operator: {request.reason or "no reason given"})')
            self._host.poll()
        return response

    def report_outcome(
        self, request: ReportOutcome.Request, response: ReportOutcome.Response
    ) -> ReportOutcome.Response:
        response.text = self.on_outcome(request.outcome)[:1024]
        response.accepted = not response.text
        return response

    def on_outcome(self, message: EpisodeOutcome) -> str:
        """Record an outcome; return why it is rejected."""
        routing = self._host.routing
        if routing is None:
            return NOT_CONFIGURED
        return routing.core.record_outcome(message.episode_id, message.outcome)
