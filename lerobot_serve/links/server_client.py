# SPDX-License-Identifier: Apache-2.0
"""
The client of one policy server or router over any link: its services as records, its requests on
the local path where the server offers one.

Any thread but the executor's calls what has a timeout, any thread the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import (
    CloseSessionRequest,
    CloseSessionResponse,
    GetStatusRequest,
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ReportOutcomeRequest,
    ReportOutcomeResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.services import messages
from lerobot_serve.links.link import Link, LinkCallbacks, OnPresence, Presence, Replies
from lerobot_serve.local.path import LocalPath, MakePath, NO_PATH
from lerobot_serve.local.signal import Signal

R = TypeVar('R')
MATCH_POLL_S = 0.002


class ServerClient:
    """See the module. Several may share a link; one of them closes it."""

    def __init__(self, link: Link, replies: Replies, stop: threading.Event | None = None) -> None:
        """`stop` ends a wait for the server."""
        self.server, self._link, self._replies = link.server, link, replies
        self.local: LocalPath = NO_PATH
        self._stop = stop or threading.Event()
        # what ends the wait for a response: of the last announcement of each client, since a
        # router or a gateway has many, and of the last probe
        self._announced: dict[str, Callable[[], None]] = {}
        self._end_probe: Callable[[], None] = lambda: None
        self.is_available, self.reply_topic = link.is_available, replies.topic

    def listen(self, callbacks: LinkCallbacks, make_path: MakePath | None = None) -> None:
        """
        Receive replies and watch the server, once, before the first session. `make_path` makes
        the local path to a server of this host; None: without.
        """
        if make_path:
            on_gone = partial(self._on_gone, callbacks.on_presence)
            self.local = make_path(callbacks.on_chunk, on_gone)
        self._replies.listen(callbacks)
        self._link.listen(callbacks.on_presence)

    def _on_gone(self, on_presence: OnPresence, is_lost: bool) -> None:
        """Thread `local`, which notices a killed server first."""
        if is_lost:
            on_presence(Presence.GONE)
        elif not self._link.reports_goodbye:
            on_presence(Presence.CLOSED)

    @property
    def conflict(self) -> str:
        """Why no server is used under this name, with the remedy; empty for one server."""
        return self._link.conflict

    def session_request_for(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        """Return a session request whose replies arrive here."""
        topic = self.reply_topic(session_request.session_epoch)
        return replace(session_request, reply_topic=topic)

    def open(
        self, request: OpenSessionRequest, timeout_s: float, *, locally: bool = True
    ) -> OpenSessionResponse:
        """
        Open a session and return the response; `locally`: on the local path, if the server offers
        it. Raises SessionRefused and ServerUnreachable.
        """
        reply = self._call('open_session', request, OpenSessionResponse, timeout_s)
        path = self.local if locally else NO_PATH
        return path.accept(messages.check_accepted(self.server, reply))

    def close(self, request: OpenSessionRequest, timeout_s: float) -> CloseSessionResponse:
        """Close a session. Raises ServerUnreachable."""
        self._forget_announced(request.client_id)
        closing = CloseSessionRequest(request.client_id, request.session_epoch)
        return self._call('close_session', closing, CloseSessionResponse, timeout_s)

    def reset(self, request: ResetEpisodeRequest, timeout_s: float) -> ResetEpisodeResponse:
        """Begin the next episode. Raises ServerUnreachable."""
        return self._call('reset_episode', request, ResetEpisodeResponse, timeout_s)

    def status(self, timeout_s: float) -> GetStatusResponse:
        """Return the status of the server. Raises ServerUnreachable."""
        return self._call('get_status', GetStatusRequest(), GetStatusResponse, timeout_s)

    def announce(self, request: ResetEpisodeRequest, on_refusal: Callable[[str], None]) -> None:
        """
        Announce the next episode without waiting, since a lost server would delay the first
        action; the first request of the episode carries the same flag. Another thread calls
        `on_refusal`.
        """

        def check(raw: bytes) -> None:
            reply = messages.read_decision(ResetEpisodeResponse, raw)
            if not reply.acknowledged:
                on_refusal(reply.text)

        self._forget_announced(request.client_id)
        self._announced[request.client_id] = self._link.start_call(
            'reset_episode', encode(request), check, on_refusal
        )

    def _forget_announced(self, client_id: str) -> None:
        """Remove the last announcement; one without a response must not stay pending forever."""
        if end := self._announced.pop(client_id, None):
            end()

    def report_outcome(
        self, request: ReportOutcomeRequest, on_reply: Callable[[bool, str], None]
    ) -> None:
        """
        Report the outcome of an episode to a router over Zenoh, without waiting. `on_reply` gets
        its decision; it is not called where the call fails, so that the caller reports again.
        """

        def check(raw: bytes) -> None:
            reply = messages.read_decision(ReportOutcomeResponse, raw)
            on_reply(reply.accepted, reply.text)

        self._link.start_call('report_outcome', encode(request), check, lambda _: None)

    def probe(self, on_reply: Callable[[], None]) -> None:
        """
        Request the status without waiting; another thread calls `on_reply`. A new request cancels
        the previous one, which would otherwise stay pending forever.
        """
        self._end_probe()
        self._end_probe = self._link.start_call(
            'get_status', encode(GetStatusRequest()), lambda _: on_reply(), lambda _: None
        )

    def wait_until_matched(self, timeout_s: float) -> bool:
        """
        Wait until requests and replies are connected; return False after the timeout.

        A service is available before the topics of its server are matched; messages sent until
        then are lost.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._link.is_read() and self._replies.are_connected()):
            if time.monotonic() > deadline or self._stop.wait(MATCH_POLL_S):
                return False
        return True

    def signal(self) -> Signal:
        """Return a signal for a thread that waits for a chunk; its wait may receive it."""
        return self.local.signal()

    def send(self, raw: Outgoing) -> None:
        """Send the bytes of an Observation: on the local path, or on the link."""
        if not self.local.send(raw):
            self._link.publish(raw)

    def end(self) -> None:
        """Close the local path, the replies and the link; call it once no thread uses them."""
        self.local.close()
        self._replies.close()
        self._link.close()

    def _call(self, service: str, request: Struct, kind: type[R], timeout_s: float) -> R:
        raw = self._link.call(service, messages.encode_request(request), timeout_s)
        return messages.read_response(kind, raw, f'{self.server}, {service}')
