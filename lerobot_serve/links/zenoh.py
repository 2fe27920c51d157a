# SPDX-License-Identifier: Apache-2.0
"""
The link to one policy server or router over Zenoh. Several share one ZenohLink.

The thread that builds the client builds and closes them; callbacks run in threads of Zenoh.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any

import zenoh

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.names import KEY_ROOT
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import ignore, LinkCallbacks, OnPresence, Presence
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.zenoh.keys import ClientKeys, Role, server_of, ServerKeys
from lerobot_serve.zenoh.link import first_sentence, forwarded, is_matched, ZenohLink
from lerobot_serve.zenoh.link_sender import LIFESPAN_S, LinkSender
from lerobot_serve.zenoh.server_name import ServerInstances
from lerobot_serve.zenoh.settings import Traffic

SERVERS_TIMEOUT_S = 0.5
# requests of one with the sessions of many that wait for the link
QUEUED_REQUESTS = 64


class ZenohServerLink:
    """
    A Link. `name` is the client in its keys: a robot, or a router or gateway for all of its
    robots.
    """

    reports_goodbye = True

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        role: Role,
        name: str,
        *,
        traffic: Traffic = Traffic.OBSERVATION,
        on_drop: Callable[[str], None] | None = None,
        lifespan_s: float = LIFESPAN_S,
    ) -> None:
        """
        With `on_drop` requests go out in a thread of their own: the caller, which serves many,
        never waits for the link. It gets `link_full` for one that waited for `lifespan_s`; any
        thread.
        """
        self.server, self._link = server, link
        self._at = ServerKeys(link.settings.site, server)
        self.keys = self._at.client(role, name)
        self.conflict = ''
        self._is_alive = self._was_available = False
        self._report: OnPresence = ignore
        # tokens of the server, and of its processes, come in threads of their own
        self._changing = threading.Lock()
        self._requests = link.publisher(self.keys.observation, traffic)
        self._sender: LinkSender | None = None
        if on_drop:
            self._sender = LinkSender(
                self._requests.put, on_drop, limit=QUEUED_REQUESTS, lifespan_s=lifespan_s
            )
        self._ends: list[Callable[[], Any]] = []

    def replies(self, purpose: str = 'replies', *, may_wait: bool = False) -> ZenohReplies:
        """Return the replies for a purpose; those that `may_wait` have a thread of their own."""
        return ZenohReplies(self._link, self.keys, purpose, may_wait=may_wait)

    def listen(self, on_presence: OnPresence) -> None:
        """Watch the server, and show it this client."""
        self._report = on_presence
        # before its presence: a name of two servers is found ambiguous before it is used
        instances = ServerInstances(self._link, self._at, self._on_conflict)
        presence = self._link.watch_alive(self._at.alive, self._on_alive)
        token = self._link.declare_alive(self.keys.alive)
        self._ends += [token.undeclare, presence.undeclare, instances.close]

    def _on_alive(self, _: str, is_alive: bool) -> None:
        with self._changing:
            self._is_alive = is_alive
            self._report_change()

    def _on_conflict(self, conflict: str) -> None:
        with self._changing:
            self.conflict = conflict
            self._report_change()

    def _report_change(self) -> None:
        before, self._was_available = self._was_available, self.is_available()
        if self._was_available != before:
            lost = Presence.AMBIGUOUS if self.conflict else Presence.GONE
            self._report(Presence.THERE if self._was_available else lost)

    def is_available(self) -> bool:
        """Return whether one server has a token: it runs, and is reached."""
        return self._is_alive and not self.conflict

    def is_read(self) -> bool:
        """Return whether one server is there and reads the requests."""
        return self.is_available() and is_matched(self._requests)

    def call(self, service: str, request: bytes, timeout_s: float) -> bytes:
        """Return the response of a service. Raises ServerUnreachable."""
        # both servers of a name would act on a call; to close a session harms neither
        if self.conflict and service != 'close_session':
            raise ServerUnreachable(self.conflict)
        return self._link.call(self.keys.service(service), request, timeout_s)

    def start_call(
        self,
        service: str,
        request: bytes,
        on_response: Callable[[bytes], None],
        on_refusal: Callable[[str], None],
    ) -> Callable[[], None]:
        """Call without waiting; Zenoh itself ends the wait."""
        self._link.call_later(self.keys.service(service), request, on_response, on_refusal)
        return lambda: None

    def publish(self, raw: Outgoing) -> None:
        """
        Queue a request, or wait for the link. Raises ServerUnreachable for a link that is closed.
        """
        # here, since only the thread that receives has the payload
        payload = forwarded(raw)
        if self._sender:
            self._sender.send(payload)
            return
        try:
            self._requests.put(payload)
        except zenoh.ZError as error:
            raise ServerUnreachable(f'{self.server}: {first_sentence(error)}') from None

    def absence(self) -> str:
        """Return why the server is not available, and what to check. Blocks for a moment."""
        if self.conflict:
            return self.conflict
        settings, server = self._link.settings, self.server
        endpoints = ', '.join(settings.connect)
        if not self._link.is_connected():
            return (
                f'nothing answers at {endpoints}; check that the server runs with zenoh_listen, '
                'the address and port, a firewall, and with keys that both are of one site'
            )
        others = servers_of(self._link)
        if others:
            return (
                f'{endpoints} has no server {server} in site {settings.site!r}; there are '
                f'{", ".join(others)}'
            )
        return (
            f'{endpoints} answers, and has no server in site {settings.site!r}; check that '
            f'{server} is active, the name of the site, and with keys that they allow it'
        )

    def close(self) -> None:
        """Undeclare everything; the server sees this client go."""
        if self._sender:
            self._sender.close(self._requests.undeclare)
        else:
            self._requests.undeclare()
        for end in self._ends:
            end()
        self._ends.clear()


class ZenohReplies:
    """The Replies to the client of a ZenohServerLink."""

    def __init__(self, link: ZenohLink, keys: ClientKeys, purpose: str, *, may_wait: bool) -> None:
        self._link, self._keys, self._purpose, self._may_wait = link, keys, purpose, may_wait
        self._subscriptions: list[zenoh.Subscriber[None]] = []

    def listen(self, callbacks: LinkCallbacks) -> None:
        """Subscribe to the replies, and to those to requests without a session."""
        deposits = {self._keys.replies(self._purpose): callbacks.on_chunk}
        if callbacks.on_no_session:
            deposits[self._keys.no_session] = callbacks.on_no_session
        for key, deposit in deposits.items():
            self._subscriptions.append(
                self._link.subscribe(key, _without_key(deposit), may_wait=self._may_wait)
            )

    def topic(self, session_epoch: int) -> str:
        """Return the key on which the server replies in one session."""
        return self._keys.reply(session_epoch, self._purpose)

    def are_connected(self) -> bool:
        """Return True: a server that reads requests knows this subscriber."""
        return True

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.undeclare()
        self._subscriptions.clear()


def _without_key(deposit: Callable[[bytes], None]) -> Callable[[str, bytes], None]:
    return lambda _, raw: deposit(raw)


def zenoh_client(link: ZenohLink, server: str, role: Role, name: str) -> ServerClient:
    """Return the client of a server, whose thread waits for the link."""
    at = ZenohServerLink(link, server, role, name)
    return ServerClient(at, at.replies())


def servers_of(link: ZenohLink) -> list[str]:
    """Return the names of the servers that are present in the site of a link."""
    tokens = link.tokens(f'{KEY_ROOT}/{link.settings.site}/*/alive', SERVERS_TIMEOUT_S)
    return sorted(map(server_of, tokens))
