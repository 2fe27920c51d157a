# SPDX-License-Identifier: Apache-2.0
"""
A link without a network, for tests: its server is a few functions of the test, which run in the
thread that calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import ignore, LinkCallbacks, OnPresence, Presence


class FakeReplies:
    """The Replies of a test, connected from the start; also for a client that receives nothing."""

    def __init__(self, topic: str = '/fake/action_chunk') -> None:
        self._topic = topic
        self.callbacks = LinkCallbacks(lambda _: None)

    def listen(self, callbacks: LinkCallbacks) -> None:
        self.callbacks = callbacks

    def topic(self, session_epoch: int) -> str:
        return self._topic

    def are_connected(self) -> bool:
        return True

    def close(self) -> None:
        self.callbacks = LinkCallbacks(lambda _: None)


class FakeLink:
    """
    A Link whose server answers a service with the function of that name in `services`: bytes to
    bytes, or None for a hanging server. `sent` has the requests, `pending` the services that were
    called without waiting and do not answer.
    """

    reports_goodbye = True

    def __init__(
        self,
        services: dict[str, Callable[[bytes], bytes | None]],
        server: str = '/policy_server',
    ) -> None:
        self.services, self.server, self.conflict = services, server, ''
        self.is_there = True
        self.sent: list[bytes] = []
        self.pending: list[str] = []
        self._on_presence: OnPresence = ignore

    def listen(self, on_presence: OnPresence) -> None:
        self._on_presence = on_presence

    def go(self, presence: Presence = Presence.GONE) -> None:
        """Let the server end."""
        self.is_there = False
        self._on_presence(presence)

    def come_back(self) -> None:
        self.is_there = True
        self._on_presence(Presence.THERE)

    def is_available(self) -> bool:
        return self.is_there and not self.conflict

    def is_read(self) -> bool:
        return self.is_there

    def call(self, service: str, request: bytes, timeout_s: float) -> bytes:
        """Return the response. Raises ServerUnreachable, at once for a hanging server."""
        if not self.is_there:
            raise ServerUnreachable(f'{self.server}, {service}: it does not run')
        response = self.services[service](request)
        if response is None:
            raise ServerUnreachable(f'{self.server}, {service}: no reply within {timeout_s:g} s')
        return response

    def start_call(
        self,
        service: str,
        request: bytes,
        on_response: Callable[[bytes], None],
        on_refusal: Callable[[str], None],
    ) -> Callable[[], None]:
        """Answer now; a server that is away, or hangs, does not."""
        response = self.services[service](request) if self.is_there else None
        if response is not None:
            on_response(response)
            return lambda: None
        self.pending.append(service)
        return partial(self.pending.remove, service)

    def publish(self, raw: Outgoing) -> None:
        self.sent.append(bytes(raw))

    def close(self) -> None:
        self._on_presence = ignore
