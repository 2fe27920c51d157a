# SPDX-License-Identifier: Apache-2.0
"""
Serve the services of the router. The executor thread; slow work runs in the thread `control` and
is awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
from typing import Any, Protocol

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import REASON_LIMIT
from lerobot_serve.contract.records import OpenSessionRequest, ResetEpisodeRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import check_ros_reply_topic, SessionRefused
from lerobot_serve.router.api.slot_commands import (
    Command,
    run_slot_command,
    SlotCommandRejected,
)
from lerobot_serve.router.core import RouterCore, RouterHost
from lerobot_serve.router.data_path.dispatcher import DRAINING_TEXT
from lerobot_serve.router.monitoring import reports
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.replicas.slot_stats import OutcomeReceipt
from lerobot_serve.router.sessions.merge_replies import merge_replies
from lerobot_serve_interfaces.msg import EpisodeOutcome
from lerobot_serve_interfaces.srv import (
    CloseSession,
    ControlSlot,
    GetStatus,
    OpenSession,
    ReportOutcome,
    ResetEpisode,
)

NOT_CONFIGURED = 'the router is not configured; configure and activate it'


class ReplyTopicManager(Protocol):
    """Publishers on the reply topics of clients; see ros.contract.reply_publishers."""

    def open(self, topic: str) -> None: ...

    def retain(self, topics: set[str]) -> None: ...


class RouterServices:
    """`read_request` raises SessionRefused; `message_of` converts a record for ROS 2."""

    def __init__(
        self,
        host: RouterHost,
        replies: ReplyTopicManager,
        drops: DropCounters,
        read_request: Callable[[OpenSession.Request], OpenSessionRequest],
        message_of: Callable[[Any, Any], Any],
        observation_topic: str,
    ) -> None:
        self._host, self._replies, self._drops = host, replies, drops
        self._read_request, self._message_of = read_request, message_of
        self._observation_topic = observation_topic
        # reply topics of sessions that are being opened
        self._opening: list[str] = []
        # guards _opening: no topic may be opened while unused ones are closed
        self._topics_lock = threading.Lock()

    def table(self) -> tuple[tuple[type, str, Callable[..., Any]], ...]:
        """Return type, name and callback of each service."""
        return (
            (OpenSession, 'open_session', self.open),
            (CloseSession, 'close_session', self.close),
            (ResetEpisode, 'reset_episode', self.reset),
            (GetStatus, 'get_status', self.get_status),
            (ControlSlot, 'control_slot', self.control_slot),
            (ReportOutcome, 'report_outcome', self.report_outcome),
        )

    async def open(
        self,
        request: OpenSession.Request,
        response: OpenSession.Response,
        *,
        over_ros: bool = False,
    ) -> OpenSession.Response:
        core = self._host.core
        with self._topics_lock:
            self._opening.append(request.reply_topic)
        try:
            if core is None or not core.is_open:
                raise self._not_ready(core)
            session_request = self._read_request(request)
            if over_ros:
                check_ros_reply_topic(session_request)
            with self._topics_lock:
                self._replies.open(session_request.reply_topic)
            return await self._host.run_in_control_thread(
                core, partial(self._open, core, session_request)
            )
        except SessionRefused as refused:
            self._drops.add(f'refused_{refused.code.name.lower()}')
            self._host.warn(f'refused {request.client_id!r}: {refused}')
            response.accepted, response.code = False, int(refused.code)
            response.reason = encodable_text(str(refused), REASON_LIMIT)
            return response
        finally:
            with self._topics_lock:
                self._opening.remove(request.reply_topic)
            self.close_unused_reply_topics()

    def _not_ready(self, core: RouterCore | None) -> SessionRefused:
        if core and core.is_drained:
            return SessionRefused(Refusal.DRAINING, DRAINING_TEXT)
        return SessionRefused(Refusal.NOT_READY, f'not ready: {self._host.server_state[1]}')

    def _open(self, core: RouterCore, session_request: OpenSessionRequest) -> OpenSession.Response:
        """Open a session. Thread `control`. Raises SessionRefused."""
        if not core.is_open:
            raise self._not_ready(core)
        opened = core.session_manager.open(session_request)
        try:
            reply = merge_replies(opened, self._observation_topic)
        except SessionRefused:
            core.close_session(session_request.client_id, session_request.session_epoch)
            raise
        return self._message_of(reply, OpenSession.Response)

    async def close(
        self, request: CloseSession.Request, response: CloseSession.Response
    ) -> CloseSession.Response:
        core, name = self._host.core, (request.client_id, request.session_epoch)
        try:
            if core:
                close = partial(core.close_session, *name)
                response.closed = await self._host.run_in_control_thread(core, close) is not None
        except SessionRefused as refused:
            response.text = encodable_text(str(refused))
        if not (response.closed or response.text):
            response.text = f'{name[0]!r} has no session of epoch {name[1]}'
        self.close_unused_reply_topics()
        return response

    async def reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        core = self._host.core
        if core is None:
            response.text = NOT_CONFIGURED
            return response
        name = request.client_id, request.session_epoch
        episode = ResetEpisodeRequest(*name, request.episode, request.episode_id)
        reset = partial(core.session_manager.reset, episode)
        try:
            texts = await self._host.run_in_control_thread(core, reset)
        except SessionRefused as refused:
            texts = [str(refused)]
        response.acknowledged, response.text = not texts, encodable_text('; '.join(texts))
        return response

    def close_unused_reply_topics(self) -> None:
        """Close the reply topics without a session."""
        core = self._host.core
        with self._topics_lock:
            sessions = core.table.sessions if core else ()
            self._replies.retain(
                {*self._opening, *(each.request.reply_topic for each in sessions)}
            )

    def get_status(self, _: GetStatus.Request, response: GetStatus.Response) -> GetStatus.Response:
        core = self._host.core
        reply = reports.status_reply(core.session_manager.status_replies if core else ())
        response = self._message_of(reply, GetStatus.Response)
        response.status = self._host.status()
        return response

    async def control_slot(
        self, request: ControlSlot.Request, response: ControlSlot.Response
    ) -> ControlSlot.Response:
        core = self._host.core
        try:
            if core is None:
                raise SlotCommandRejected(NOT_CONFIGURED)
            if request.command == Command.CANARY_FINISH:
                await self._open_sessions(core, 'a')
            text = run_slot_command(
                core,
                request.command,
                request.slot,
                request.reason,
                at_once=request.move_running_episodes,
                split_percent=request.split_percent,
                plan=tuple(request.plan),
            )
        except SlotCommandRejected as error:
            response.text = encodable_text(str(error))
        else:
            response.success, response.text = True, encodable_text(text)
            self._host.warn(f'{text} (an operator: {request.reason or "no reason given"})')
            self._host.poll()
        return response

    async def _open_sessions(self, core: RouterCore, slot: str) -> None:
        """
        Open the sessions that a slot lacks: its servers have just loaded the promoted policy, and
        a robot without a session there would get no reply. The command follows in any case.
        """
        try:
            await self._host.run_in_control_thread(core, partial(core.session_manager.fill, slot))
        except Exception as error:
            self._drops.add('open_unreachable')
            self._host.warn(f'sessions in slot {slot} are opened later: {error}')

    async def report_outcome(
        self, request: ReportOutcome.Request, response: ReportOutcome.Response
    ) -> ReportOutcome.Response:
        try:
            receipt = await self._record_outcome(request.outcome)
        except SlotCommandRejected as error:
            response.text = encodable_text(str(error))
        else:
            response.text, response.accepted = encodable_text(receipt.text), receipt.is_accepted
        return response

    async def report_own_outcome(
        self, request: ReportOutcome.Request, response: ReportOutcome.Response
    ) -> ReportOutcome.Response:
        """
        Record an outcome over Zenoh: a robot reports for its own episodes alone. Raises
        SlotCommandRejected as `_record_outcome`: the robot reports again.
        """
        outcome = request.outcome
        receipt = await self._record_outcome(outcome, of_client=outcome.client_id)
        response.text, response.accepted = encodable_text(receipt.text), receipt.is_accepted
        return response

    async def _record_outcome(
        self, message: EpisodeOutcome, *, of_client: str | None = None
    ) -> OutcomeReceipt:
        """
        Record an outcome and wait until it is durable, with its episode. Raises
        SlotCommandRejected while the router is not configured, and when it is not durable.
        """
        core = self._host.core
        if core is None:
            raise SlotCommandRejected(NOT_CONFIGURED)
        receipt = core.record_outcome(message.episode_id, message.outcome, of_client=of_client)
        if receipt.is_accepted and (problem := await self._host.until_durable(core)):
            raise SlotCommandRejected(
                f'counted, and lost if the router ends before it is durable: {problem}; report it '
                'again'
            )
        return receipt

    def on_outcome(self, message: EpisodeOutcome) -> None:
        """Record an outcome of the topic, which has no reply."""
        core = self._host.core
        if core:
            core.record_outcome(message.episode_id, message.outcome)
