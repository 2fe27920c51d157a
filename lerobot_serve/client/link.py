# SPDX-License-Identifier: Apache-2.0
"""
What a session needs of the link to its server, and that over Zenoh.

Calls block for a bounded time, in the thread of the caller. Callbacks run in threads of Zenoh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import zenoh

from lerobot_serve.client.results import policy_info, PolicyInfo
from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.names import KEY_ROOT
from lerobot_serve.contract.records import (
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.local.path import MakePath
from lerobot_serve.local.signal import Signal
from lerobot_serve.zenoh.keys import Role, server_of
from lerobot_serve.zenoh.link import first_sentence, ZenohLink
from lerobot_serve.zenoh.replies import ZenohReplies
from lerobot_serve.zenoh.session_client import ZenohSessionClient

SERVERS_TIMEOUT_S, CLOSE_TIMEOUT_S = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class LinkCallbacks:
    """
    What a link calls, in a thread of its own: `on_message` for each chunk and each notice of a
    missing session, `on_presence` when the server comes or goes.
    """

    on_message: Callable[[bytes], None]
    on_presence: Callable[[bool], None]


class ServerLink(Protocol):
    """One client of one server. Service calls raise ServerUnreachable after their timeout."""

    def is_available(self) -> bool:
        """Return whether the server is there, and only one of its name."""

    def absence(self) -> str:
        """Return why the server is not available, and what to check."""

    def describe(self, timeout_s: float, /) -> PolicyInfo:
        """Return what is served; without action names, nothing yet."""

    def reply_topic(self, session_epoch: int, /) -> str:
        """Return where replies of a session arrive."""

    def open(
        self, session_request: OpenSessionRequest, timeout_s: float, /
    ) -> OpenSessionResponse:
        """Open a session. Raises SessionRefused, too."""

    def close_session(
        self, session_request: OpenSessionRequest, timeout_s: float, /
    ) -> object: ...

    def reset(self, request: ResetEpisodeRequest, timeout_s: float, /) -> ResetEpisodeResponse: ...

    def wait_until_matched(self, timeout_s: float, /) -> bool:
        """Wait until the server reads what is sent; return False after the timeout."""

    def signal(self) -> Signal:
        """Return a signal for a thread that waits for a reply."""

    def encode(self, observation: Observation, /) -> Outgoing:
        """Return the bytes of a request, which is sent next or not at all. Raises Unencodable."""

    def send(self, raw: Outgoing, /) -> None:
        """Send the bytes of a request. Raises ServerUnreachable."""

    def close(self) -> None:
        """Stop callbacks; the server sees this client go."""


class ZenohServerLink:
    """The ServerLink over Zenoh. Several share one ZenohLink, each with a client id of its own."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        make_path: MakePath | None,
        client_id: str,
        callbacks: LinkCallbacks,
    ) -> None:
        """`make_path` makes the local path to a server of this host; None: without."""
        self._link, self._server = link, server
        self._client = ZenohSessionClient(
            link, server, Role.ROBOT, client_id, callbacks.on_presence
        )
        if make_path:

            def on_gone(is_lost: bool) -> None:
                # Zenoh itself reports a goodbye
                if is_lost:
                    callbacks.on_presence(False)

            self._client.local = make_path(callbacks.on_message, on_gone)
        self._replies = ZenohReplies(
            link,
            {server: self._client.keys},
            on_chunk=callbacks.on_message,
            on_no_session=callbacks.on_message,
        )
        self.is_available = self._client.is_available
        self.open = self._client.open
        self.close_session = self._client.close
        self.reset = self._client.reset
        self.encode = wire_observation.encode_parts
        self.signal = self._client.local.signal
        self.reply_topic = partial(self._replies.topic, server)

    def send(self, raw: Outgoing) -> None:
        """Publish a request. Raises ServerUnreachable for a link that is closed."""
        try:
            self._client.send(raw)
        except zenoh.ZError as error:
            raise ServerUnreachable(f'{self._server}: {first_sentence(error)}') from None

    def describe(self, timeout_s: float) -> PolicyInfo:
        return policy_info(self._client.status(timeout_s))

    def wait_until_matched(self, timeout_s: float) -> bool:
        return self._client.wait_until_matched(lambda: 1, timeout_s)

    def absence(self) -> str:
        if self._client.conflict:
            return self._client.conflict
        settings, server = self._link.settings, self._server
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
        self._replies.close()
        self._client.destroy_endpoints()


def servers_of(link: ZenohLink) -> list[str]:
    """Return the names of the servers that are present in the site of a link."""
    tokens = link.tokens(f'{KEY_ROOT}/{link.settings.site}/*/alive', SERVERS_TIMEOUT_S)
    return sorted(map(server_of, tokens))
