# SPDX-License-Identifier: Apache-2.0
"""The policy in shadow, and replicas for second draws, over Zenoh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import zenoh

from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRequest
from lerobot_serve.router.ros.shadow_clients import MATCH_TIMEOUT_S, OnReply, rate_limited
from lerobot_serve.router.ros.zenoh_replicas import ZenohReplicaClient
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve_interfaces.srv import OpenSession


class ZenohShadowSession:
    """Sessions whose replies arrive for one purpose. The thread `shadow`."""

    def __init__(
        self, client: ZenohReplicaClient, purpose: str, send: Callable[[bytes], None]
    ) -> None:
        self._client, self._purpose, self.send = client, purpose, send

    def open(self, session_request: SessionRequest, timeout_s: float) -> OpenSession.Response:
        """Open a session and return the reply. Raises SessionRefused and ServerUnreachable."""
        key = self._client.keys.reply(session_request.session_epoch, self._purpose)
        reply = self._client.open(replace(session_request, reply_topic=key), timeout_s)
        if not self._client.is_matched(MATCH_TIMEOUT_S):
            raise ServerUnreachable(f'{self._client.server} does not read requests')
        return reply

    def close(self, session_request: SessionRequest, timeout_s: float) -> None:
        """Close a session. Raises ServerUnreachable."""
        self._client.close(session_request, timeout_s)


class ZenohShadowClients:
    """Created and closed by the thread of a transition; the callbacks run in threads of Zenoh."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        router: str,
        replicas: dict[str, ZenohReplicaClient],
    ) -> None:
        """`server` is empty when the policy in shadow is reached over the other link."""
        self._link, self._client = link, None
        self.shadow: ZenohShadowSession | None = None
        self._subscriptions: list[zenoh.Subscriber[None]] = []
        if server:
            self._client = client = ZenohReplicaClient(link, node_name(server), router)
            self.shadow = ZenohShadowSession(client, 'shadow', client.send_shadow)
        self.second_draws = {
            name: ZenohShadowSession(client, 'second_draw', client.send)
            for name, client in replicas.items()
        }
        self._replicas = replicas

    def listen(self, on_chunk: OnReply, on_second_draw: OnReply) -> None:
        """Subscribe to all replies."""
        if self._client:
            self._subscribe(self._client, 'shadow', on_chunk)
        for client in self._replicas.values():
            self._subscribe(client, 'second_draw', on_second_draw)

    def _subscribe(self, client: ZenohReplicaClient, purpose: str, deposit: OnReply) -> None:
        limited = rate_limited(deposit)
        self._subscriptions.append(
            self._link.subscribe(
                client.keys.replies(purpose), lambda _, raw: limited(raw), may_wait=True
            )
        )

    def close(self) -> None:
        """Close all endpoints of the shadow; those of replicas are closed by their owner."""
        for subscription in self._subscriptions:
            subscription.undeclare()
        if self._client:
            self._client.destroy_endpoints()
