# SPDX-License-Identifier: Apache-2.0
"""
Sessions with the policy in shadow, and with replicas for second draws, over both links. Their
replies arrive on separate topics, best effort and rate limited.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import TYPE_CHECKING

from rclpy.node import Node

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.names import is_over_zenoh
from lerobot_serve.contract.records import OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import LinkCallbacks, Replies
from lerobot_serve.links.ros.node_links import NodeLinks
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.ros.replica_links import check_link, one_by_one, ReplicaLinks
from lerobot_serve.zenoh.keys import Role

if TYPE_CHECKING:
    from lerobot_serve.zenoh.link import ZenohLink

OnReply = Callable[[bytes], None]
# pause after each message: a flood of messages must not occupy the interpreter
PAUSE_S = 0.0005
MATCH_TIMEOUT_S = 1.0


class ShadowSession:
    """Sessions at a server whose replies arrive for one purpose. The thread `shadow`."""

    def __init__(self, client: ServerClient, send: Callable[[Raw], None]) -> None:
        self._client, self.send = client, send

    def open(self, session_request: OpenSessionRequest, timeout_s: float) -> OpenSessionResponse:
        """Open a session and return the reply. Raises SessionRefused and ServerUnreachable."""
        client = self._client
        request = client.session_request_for(session_request)
        # the local path of a replica carries the replies to robots
        reply = client.open(request, timeout_s, locally=False)
        if not client.wait_until_matched(MATCH_TIMEOUT_S):
            raise ServerUnreachable(f'the topics of {client.server} were not found')
        return reply

    def close(self, session_request: OpenSessionRequest, timeout_s: float) -> None:
        """Close a session. Raises ServerUnreachable."""
        self._client.close(session_request, timeout_s)


class ShadowReplyLinks:
    """Created and closed by the thread of a transition; `run` as in NodeLinks."""

    def __init__(
        self,
        node: Node,
        parameters: RouterParameters,
        replicas: ReplicaLinks,
        link: ZenohLink | None,
        stop: threading.Event,
    ) -> None:
        """Raises ParameterError for a shadow_server over Zenoh without `link`."""
        server = parameters.shadow_server
        check_link(link, server)
        self._links = links = NodeLinks(
            node,
            Role.ROUTER,
            node.get_fully_qualified_name(),
            parameters,
            lifespan_s=parameters.observation_lifespan_s,
            stop=stop,
            zenoh=link,
        )
        self.run, self.wake = links.run, links.wake
        self._client = links.add_shadow(server, over_zenoh=is_over_zenoh(server))
        self.shadow = ShadowSession(self._client, self._client.send)
        # by topic: over ROS 2 all replicas share one
        self._second_replies: dict[str, Replies] = {}
        self.second_draws: dict[str, ShadowSession] = {}
        for name, at in replicas.links.items():
            replies = links.replies_of(at, 'second_draw')
            self._second_replies[replies.topic(0)] = replies
            client = ServerClient(at, replies, stop)
            self.second_draws[name] = ShadowSession(client, replicas.clients[name].send)

    def listen(self, on_chunk: OnReply, on_second_draw: OnReply) -> None:
        """Subscribe to all replies, before `run`."""
        lock = threading.Lock()
        self._client.listen(LinkCallbacks(rate_limited(one_by_one(lock, on_chunk))))
        for replies in self._second_replies.values():
            replies.listen(LinkCallbacks(rate_limited(one_by_one(lock, on_second_draw))))

    def close(self) -> None:
        """Close all endpoints but those of replicas; `run` has returned."""
        for replies in self._second_replies.values():
            replies.close()
        self._links.close()


def rate_limited(deposit: OnReply) -> OnReply:
    """Return `deposit` with a pause after each message; DDS drops messages that arrive faster."""

    def deposit_and_pause(raw: bytes) -> None:
        deposit(raw)
        time.sleep(PAUSE_S)

    return deposit_and_pause
