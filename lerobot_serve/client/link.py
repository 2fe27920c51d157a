# SPDX-License-Identifier: Apache-2.0
"""
What a session needs of the link to its server, and that over Zenoh.

Calls block for a bounded time, in the thread of the caller. Callbacks run in threads of Zenoh.
"""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.client.results import policy_info, PolicyInfo
from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import (
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.links.zenoh import ZenohServerLink
from lerobot_serve.local.path import MakePath
from lerobot_serve.local.signal import Signal
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import ZenohLink

CLOSE_TIMEOUT_S = 1.0


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


class PolicyServerLink:
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
        at = ZenohServerLink(link, server, Role.ROBOT, client_id)
        self._client = client = ServerClient(at, at.replies())
        client.listen(callbacks, make_path)
        self.is_available, self.absence = client.is_available, at.absence
        self.reply_topic, self.wait_until_matched = client.reply_topic, client.wait_until_matched
        self.open, self.close_session, self.reset = client.open, client.close, client.reset
        self.encode, self.send = wire_observation.encode_parts, client.send
        self.close, self.signal = client.end, client.signal

    def describe(self, timeout_s: float) -> PolicyInfo:
        return policy_info(self._client.status(timeout_s))
