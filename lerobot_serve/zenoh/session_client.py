# SPDX-License-Identifier: Apache-2.0
"""
Clients of one policy server or router over Zenoh, with the methods of the one over ROS 2.

The request thread calls; callbacks run in threads of Zenoh.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import TypeVar

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import (
    CloseSessionRequest,
    CloseSessionResponse,
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ReportOutcomeRequest,
    ReportOutcomeResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.services import messages
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.local.path import LocalPath, NO_PATH
from lerobot_serve.zenoh.keys import ClientKeys, Role, ServerKeys
from lerobot_serve.zenoh.link import forwarded, is_matched, ZenohLink
from lerobot_serve.zenoh.link_sender import LIFESPAN_S, LinkSender
from lerobot_serve.zenoh.server_name import ServerInstances
from lerobot_serve.zenoh.settings import Traffic

R = TypeVar('R')
MATCH_POLL_S = 0.002
# requests of a QueuedSessionClient that wait for its link
QUEUED_REQUESTS = 64


class ZenohSessionClient:
    """`client_id` names this client in its keys: a robot, or a router for all of its robots."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        role: Role,
        client_id: str,
        on_presence: Callable[[bool], None],
    ) -> None:
        """A thread of Zenoh calls `on_presence` when the server comes or goes."""
        self.server, self._link = server, link
        # inside this link; its owner sets it before the first session
        self.local: LocalPath = NO_PATH
        at = ServerKeys(link.settings.site, server)
        self.keys: ClientKeys = at.client(role, client_id)
        # why no server is used under this name, with the remedy; empty for one server
        self.conflict = ''
        self._is_alive, self._report_presence = False, on_presence
        self._requests = link.publisher(self.keys.observation, Traffic.OBSERVATION)
        # before its presence: a name of two servers is found ambiguous before it is used
        self._instances = ServerInstances(link, at, self._on_conflict)
        self._presence = link.watch_alive(at.alive, self._on_presence)
        self._token = link.declare_alive(self.keys.alive)

    def _on_presence(self, _: str, is_alive: bool) -> None:
        self._is_alive = is_alive
        self._report_presence(self.is_available())

    def _on_conflict(self, conflict: str) -> None:
        self.conflict = conflict
        self._report_presence(self.is_available())

    def is_available(self) -> bool:
        """Return whether one server has a token: it runs, and is reached."""
        return self._is_alive and not self.conflict

    def open(
        self, request: OpenSessionRequest, timeout_s: float, *, locally: bool = True
    ) -> OpenSessionResponse:
        """
        Open a session and return the response; `locally`: on the local path, if the server offers
        it. Raises SessionRefused and ServerUnreachable.
        """
        raw = messages.encode_request(request)
        self._check_name()
        reply = self._call('open_session', raw, OpenSessionResponse, timeout_s)
        path = self.local if locally else NO_PATH
        return path.accept(messages.check_accepted(self.server, reply))

    def close(self, request: OpenSessionRequest, timeout_s: float) -> CloseSessionResponse:
        """Close a session. Raises ServerUnreachable."""
        raw = encode(CloseSessionRequest(request.client_id, request.session_epoch))
        return self._call('close_session', raw, CloseSessionResponse, timeout_s)

    def reset(self, request: ResetEpisodeRequest, timeout_s: float) -> ResetEpisodeResponse:
        """Begin the next episode. Raises ServerUnreachable."""
        self._check_name()
        return self._call('reset_episode', encode(request), ResetEpisodeResponse, timeout_s)

    def announce(self, request: ResetEpisodeRequest, on_refusal: Callable[[str], None]) -> None:
        """Announce the next episode without waiting."""

        def check(raw: bytes) -> None:
            reply = messages.read_decision(ResetEpisodeResponse, raw)
            if not reply.acknowledged:
                on_refusal(reply.text)

        key = self.keys.service('reset_episode')
        self._link.call_later(key, encode(request), check, on_refusal)

    def report_outcome(
        self, request: ReportOutcomeRequest, on_reply: Callable[[bool, str], None]
    ) -> None:
        """
        Report the outcome of an episode to a router, without waiting. `on_reply` gets its
        decision; it is not called where the call fails, so that the caller reports again.
        """

        def check(raw: bytes) -> None:
            reply = messages.read_decision(ReportOutcomeResponse, raw)
            on_reply(reply.accepted, reply.text)

        self._link.call_later(self.keys.service('report_outcome'), encode(request), check)

    def probe(self, on_reply: Callable[[], None]) -> None:
        """Request the status without waiting."""
        self._link.call_later(self.keys.service('get_status'), b'', lambda _: on_reply())

    def status(self, timeout_s: float) -> GetStatusResponse:
        """Return the status of the server. Raises ServerUnreachable."""
        self._check_name()
        return self._call('get_status', b'', GetStatusResponse, timeout_s)

    def wait_until_matched(self, publisher_count: Callable[[], int], timeout_s: float) -> bool:
        """Wait until the server reads the requests; return False after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not (is_matched(self._requests) and publisher_count()):
            if time.monotonic() > deadline:
                return False
            time.sleep(MATCH_POLL_S)
        return True

    def send(self, raw: Outgoing) -> None:
        """Send the bytes of an Observation: on the local path, or published."""
        if not self.local.send(raw):
            self._publish(raw)

    def _publish(self, raw: Outgoing) -> None:
        """Wait for the link."""
        self._requests.put(forwarded(raw))

    def destroy_endpoints(self) -> None:
        """Undeclare everything; the server sees this client go."""
        self.local.close()
        self._end_requests()
        self._token.undeclare()
        self._presence.undeclare()
        self._instances.close()

    def _end_requests(self) -> None:
        self._requests.undeclare()

    def _check_name(self) -> None:
        """Raise ServerUnreachable for a name of two servers: both would act on a call."""
        if self.conflict:
            raise ServerUnreachable(self.conflict)

    def _call(self, service: str, request: bytes, kind: type[R], timeout_s: float) -> R:
        raw = self._link.call(self.keys.service(service), request, timeout_s)
        return messages.read_response(kind, raw, f'{self.server}, {service}')


class QueuedSessionClient(ZenohSessionClient):
    """
    The client with the sessions of many: of a router or gateway, whose `name` it has. Its requests
    go out in a thread of its own: the caller, which serves all of them, never waits for the link.
    """

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        name: str,
        on_presence: Callable[[bool], None],
        *,
        on_drop: Callable[[str], None],
        lifespan_s: float = LIFESPAN_S,
    ) -> None:
        """`on_drop` gets `link_full` for a request that waited for `lifespan_s`; any thread."""
        super().__init__(link, server, Role.ROUTER, name, on_presence)
        self._sender = LinkSender(
            self._requests.put, on_drop, limit=QUEUED_REQUESTS, lifespan_s=lifespan_s
        )

    def _publish(self, raw: Outgoing) -> None:
        """Queue the bytes of an Observation."""
        # here, since only the thread that receives has the payload
        self._sender.send(forwarded(raw))

    def _end_requests(self) -> None:
        self._sender.close(self._requests.undeclare)
