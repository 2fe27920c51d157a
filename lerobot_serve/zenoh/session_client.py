# SPDX-License-Identifier: Apache-2.0
"""
Clients of one policy server or router over Zenoh, with the methods of the one over ROS 2.

The request thread calls; callbacks run in threads of Zenoh.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any, Protocol

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.local import offer
from lerobot_serve.local.path import LocalPath, NO_PATH
from lerobot_serve.zenoh.keys import ClientKeys, Role, ServerKeys
from lerobot_serve.zenoh.link import forwarded, is_matched, ZenohLink
from lerobot_serve.zenoh.link_sender import LIFESPAN_S, LinkSender
from lerobot_serve.zenoh.server_name import ServerInstances
from lerobot_serve.zenoh.traffic import Traffic

MATCH_POLL_S = 0.002
# requests of a QueuedSessionClient that wait for its link
QUEUED_REQUESTS = 64
SAME_VERSION = 'both ends need the same version of lerobot_serve'


class ServiceMessages(Protocol):
    """
    The services of the contract as CDR bytes; ros.contract.service_bytes implements it. A method
    returns a message of lerobot_serve_interfaces.
    """

    def open_request(self, session_request: OpenSessionRequest) -> bytes: ...

    def close_request(self, client_id: str, session_epoch: int) -> bytes: ...

    def encode(self, request: Any) -> bytes: ...

    def decode(self, service: str, raw: bytes) -> Any: ...


class ZenohSessionClient:
    """`client_id` names this client in its keys: a robot, or a router for all of its robots."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        role: Role,
        client_id: str,
        messages: ServiceMessages,
        on_presence: Callable[[bool], None],
    ) -> None:
        """A thread of Zenoh calls `on_presence` when the server comes or goes."""
        self.server, self._link, self._messages = server, link, messages
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
        self, session_request: OpenSessionRequest, timeout_s: float, *, locally: bool = True
    ) -> Any:
        """
        Open a session, return the response; `locally`: on the local path, if the server offers it.
        Raises SessionRefused and ServerUnreachable.
        """
        request = self._messages.open_request(session_request)
        self._check_name()
        reply = self._call('open_session', request, timeout_s)
        if not reply.accepted:
            known = reply.code in tuple(Refusal)
            reason = reply.reason or f'{self.server} gave no reason; {SAME_VERSION}'
            raise SessionRefused(Refusal(reply.code) if known else Refusal.NOT_READY, reason)
        offered, _ = offer.take(reply.extensions)
        if locally:
            self.local.accept(offered)
        return reply

    def close(self, session_request: OpenSessionRequest, timeout_s: float) -> Any:
        """Close a session. Raises ServerUnreachable."""
        request = self._messages.close_request(
            session_request.client_id, session_request.session_epoch
        )
        return self._call('close_session', request, timeout_s)

    def reset(self, request: Any, timeout_s: float) -> Any:
        """Begin the next episode. Raises ServerUnreachable."""
        self._check_name()
        return self._call('reset_episode', self._messages.encode(request), timeout_s)

    def announce(self, request: Any, on_refusal: Callable[[str], None]) -> None:
        """Announce the next episode without waiting."""

        def check(raw: bytes) -> None:
            try:
                reply = self._messages.decode('reset_episode', raw)
            except ValueError as error:
                on_refusal(f'the reply cannot be read ({error}); {SAME_VERSION}')
                return
            if not reply.acknowledged:
                on_refusal(reply.text)

        key = self.keys.service('reset_episode')
        self._link.call_later(key, self._messages.encode(request), check, on_refusal)

    def report_outcome(self, request: Any, on_reply: Callable[[bool, str], None]) -> None:
        """
        Report the outcome of an episode to a router, without waiting. `on_reply` gets its
        decision; it is not called where the call fails, so that the caller reports again.
        """

        def check(raw: bytes) -> None:
            try:
                reply = self._messages.decode('report_outcome', raw)
            except ValueError as error:
                on_reply(False, f'the reply cannot be read ({error}); {SAME_VERSION}')
                return
            on_reply(reply.accepted, reply.text)

        key = self.keys.service('report_outcome')
        self._link.call_later(key, self._messages.encode(request), check)

    def probe(self, on_reply: Callable[[], None]) -> None:
        """Request the status without waiting."""
        self._link.call_later(self.keys.service('get_status'), b'', lambda _: on_reply())

    def status(self, timeout_s: float) -> Any:
        """Return the status of the server. Raises ServerUnreachable."""
        self._check_name()
        return self._call('get_status', b'', timeout_s)

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

    def _call(self, service: str, request: bytes, timeout_s: float) -> Any:
        raw = self._link.call(self.keys.service(service), request, timeout_s)
        try:
            return self._messages.decode(service, raw)
        except ValueError as error:
            raise ServerUnreachable(
                f'{self.server}, {service}: the reply cannot be read ({error}); {SAME_VERSION}'
            ) from None


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
        messages: ServiceMessages,
        on_presence: Callable[[bool], None],
        *,
        on_drop: Callable[[str], None],
        lifespan_s: float = LIFESPAN_S,
    ) -> None:
        """`on_drop` gets `link_full` for a request that waited for `lifespan_s`; any thread."""
        super().__init__(link, server, Role.ROUTER, name, messages, on_presence)
        self._sender = LinkSender(
            self._requests.put, on_drop, limit=QUEUED_REQUESTS, lifespan_s=lifespan_s
        )

    def _publish(self, raw: Outgoing) -> None:
        """Queue the bytes of an Observation."""
        # here, since only the thread that receives has the payload
        self._sender.send(forwarded(raw))

    def _end_requests(self) -> None:
        self._sender.close(self._requests.undeclare)
