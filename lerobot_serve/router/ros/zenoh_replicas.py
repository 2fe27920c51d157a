# SPDX-License-Identifier: Apache-2.0
"""
The replicas, and the policy in shadow, that the router reaches over Zenoh, with the methods of
those over ROS 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import queue
from typing import Any

from msgspec.structs import replace
import zenoh

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.records import OpenSessionRequest, ServerStatus
from lerobot_serve.contract.services.messages import read, SAME_VERSION
from lerobot_serve.local.path import MakePath
from lerobot_serve.router.ros.replica_clients import MALFORMED_STATUS, OnReply, OnStatus
from lerobot_serve.router.ros.shadow_clients import OnReply as ShadowReply
from lerobot_serve.router.ros.shadow_clients import rate_limited, ShadowSession
from lerobot_serve.zenoh.keys import ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.link_sender import LIFESPAN_S
from lerobot_serve.zenoh.session_client import QueuedSessionClient
from lerobot_serve.zenoh.settings import Traffic


class ZenohReplicaClient(QueuedSessionClient):
    """The client of one server; the sessions of all robots are below the name of the router."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        router: str,
        *,
        on_drop: Callable[[str], None] = lambda _: None,
        lifespan_s: float = LIFESPAN_S,
    ) -> None:
        """`on_drop` gets `link_full` for a request that waited for `lifespan_s`."""
        super().__init__(
            link,
            server,
            router,
            lambda _: None,
            on_drop=on_drop,
            lifespan_s=lifespan_s,
        )
        self._shadow_requests = link.publisher(self.keys.observation, Traffic.SHADOW)

    def session_request_for(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        """Return the session request of a robot with the reply key of this server."""
        key = self.keys.reply(session_request.session_epoch)
        return replace(session_request, reply_topic=key)

    def is_matched(self, timeout_s: float) -> bool:
        """Wait until the server reads the requests."""
        return self.wait_until_matched(lambda: int(self.is_available()), timeout_s)

    def send_shadow(self, raw: Raw) -> None:
        """Publish the bytes of an Observation behind all other traffic."""
        self._shadow_requests.put(bytes(raw))

    def destroy_endpoints(self) -> None:
        self._shadow_requests.undeclare()
        super().destroy_endpoints()


class ZenohReplicas:
    """Created and closed by the thread of a transition; the callbacks run in threads of Zenoh."""

    def __init__(
        self,
        link: ZenohLink,
        servers: tuple[str, ...],
        router: str,
        *,
        run: Callable[[Callable[[], None]], Any],
        on_drop: Callable[[str], None],
        lifespan_s: float,
        make_path: MakePath | None = None,
    ) -> None:
        """
        `run` runs a function in the executor, in any order: statuses belong there. `make_path`
        makes the local path to a server of this host; None: without.
        """
        self._link, self._run, self._on_drop = link, run, on_drop
        self._make_path = make_path
        self.clients = {
            server: ZenohReplicaClient(
                link, node_name(server), router, on_drop=on_drop, lifespan_s=lifespan_s
            )
            for server in servers
        }
        # keeps the order, which tasks of rclpy have not: the newest status of a server counts
        self._statuses: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # server -> why its last status could not be read
        self._unreadable: dict[str, str] = {}
        self._subscriptions: list[zenoh.Subscriber[None]] = []

    def listen(self, on_reply: OnReply, on_status: OnStatus) -> None:
        """Subscribe to replies and status of all servers."""
        for server, client in self.clients.items():
            if self._make_path:
                client.local = self._make_path(partial(on_reply, server), nothing)
            status = ServerKeys(self._link.settings.site, client.server).status
            self._subscriptions += [
                self._link.subscribe(
                    client.keys.replies(), partial(deposit_reply, on_reply, server)
                ),
                self._link.subscribe(status, partial(self._on_status, on_status, server)),
            ]

    def _on_status(self, on_status: OnStatus, server: str, _: str, raw: bytes) -> None:
        try:
            status = read(ServerStatus, raw)
        except ValueError as error:
            self._on_drop(MALFORMED_STATUS)
            self._unreadable[server] = f'its status cannot be read ({error}); {SAME_VERSION}'
            return
        self._unreadable.pop(server, None)
        self._statuses.put(partial(on_status, server, status))
        self._run(self._run_next)

    def _run_next(self) -> None:
        self._statuses.get()()

    def link_problem(self, server: str) -> str:
        """Return why a server cannot be used, with the remedy; empty when it can."""
        return self.clients[server].conflict or self._unreadable.get(server, '')

    def is_available(self, server: str) -> bool:
        """Return whether a server is there."""
        return self.clients[server].is_available()

    def close(self) -> None:
        """Close all endpoints."""
        for subscription in self._subscriptions:
            subscription.undeclare()
        for client in self.clients.values():
            client.destroy_endpoints()


def nothing(_: bool) -> None:
    """Zenoh itself reports a server that has gone."""


def deposit_reply(on_reply: OnReply, server: str, _: str, raw: bytes) -> None:
    on_reply(server, raw)


def shadow_session(
    client: ZenohReplicaClient, purpose: str, send: Callable[[Raw], None]
) -> ShadowSession:
    """Return the sessions of a client whose replies arrive for this purpose."""
    return ShadowSession(
        client,
        send,
        lambda session_request: client.keys.reply(session_request.session_epoch, purpose),
        client.is_matched,
        f'{client.server} does not read requests',
    )


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
        self.shadow: ShadowSession | None = None
        self._subscriptions: list[zenoh.Subscriber[None]] = []
        if server:
            self._client = client = ZenohReplicaClient(link, node_name(server), router)
            self.shadow = shadow_session(client, 'shadow', client.send_shadow)
        self.second_draws = {
            name: shadow_session(client, 'second_draw', client.send)
            for name, client in replicas.items()
        }
        self._replicas = replicas

    def listen(self, on_chunk: ShadowReply, on_second_draw: ShadowReply) -> None:
        """Subscribe to all replies."""
        if self._client:
            self._subscribe(self._client, 'shadow', on_chunk)
        for client in self._replicas.values():
            self._subscribe(client, 'second_draw', on_second_draw)

    def _subscribe(self, client: ZenohReplicaClient, purpose: str, deposit: ShadowReply) -> None:
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
