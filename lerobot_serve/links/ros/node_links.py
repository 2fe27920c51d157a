# SPDX-License-Identifier: Apache-2.0
"""
The clients of the servers of one node, each over ROS 2 or Zenoh.

The thread that builds or configures the node builds and closes them.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Protocol, TYPE_CHECKING, TypeAlias, Union

from rclpy.node import Node

from lerobot_serve.contract.names import node_name
from lerobot_serve.links.link import LinkCallbacks, Replies
from lerobot_serve.links.ros.link import RosLink, RosReplies
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.local.local_parameters import local_paths, PathParameters
from lerobot_serve.ros import qos
from lerobot_serve.ros.subscriptions import DedicatedSubscriptions
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.settings import Traffic
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings, ZenohParameters
from lerobot_serve_interfaces.msg import ActionChunk

if TYPE_CHECKING:
    from lerobot_serve.links.zenoh import ZenohServerLink
    from lerobot_serve.zenoh.link import ZenohLink

AnyLink: TypeAlias = Union[RosLink, 'ZenohServerLink']


class LinkParameters(PathParameters, ZenohParameters, Protocol):
    """The parameters of a node, including those of its links."""


class NodeLinks:
    """
    See the module. `run`, the body of a thread, delivers replies over ROS 2 until `stop` is set
    and `wake` is called; threads of Zenoh deliver those over Zenoh.
    """

    def __init__(
        self,
        node: Node,
        role: Role,
        name: str,
        parameters: LinkParameters,
        *,
        lifespan_s: float,
        stop: threading.Event,
        zenoh: ZenohLink | None = None,
        on_drop: Callable[[str], None] | None = None,
    ) -> None:
        """
        `name` is this client in the keys of `zenoh`, or of a link of its own. A server does not
        get a request older than `lifespan_s`; `on_drop` gets `link_full` for one to a full link,
        for which one with the sessions of many does not wait. Raises UserError.
        """
        self._node, self._role, self._name = node, role, name
        self._lifespan_s, self._stop, self._on_drop = lifespan_s, stop, on_drop
        self._zenoh, self._parameters = zenoh, parameters
        self._own_zenoh: ZenohLink | None = None
        self._make_path = local_paths(parameters, lifespan_s, node.get_logger().info)
        self.clients: dict[str, ServerClient] = {}
        self.links: dict[str, AnyLink] = {}
        self._subscriptions = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)
        self.run, self.wake = self._subscriptions.run, self._subscriptions.wake

    def add(self, server: str, topic: str, *, over_zenoh: bool) -> ServerClient:
        """Return the client of a server, which replies over ROS 2 on a topic of the node."""
        replies: Replies
        link = self._make_link(server, over_zenoh=over_zenoh, is_shadow=False)
        if isinstance(link, RosLink):
            replies = RosReplies(self._node, self._subscriptions, server, topic)
        else:
            replies = link.replies()
        return self._add(server, link, replies)

    def add_shadow(self, server: str, *, over_zenoh: bool) -> ServerClient:
        """Return the client of a policy in shadow; requests and replies may be lost."""
        link = self._make_link(server, over_zenoh=over_zenoh, is_shadow=True)
        return self._add(server, link, self.replies_of(link, 'shadow'))

    def replies_of(self, link: AnyLink, purpose: str) -> Replies:
        """Return where replies of a server arrive that may be lost; their receiver may wait."""
        if isinstance(link, RosLink):
            topic = f'~/replies/{purpose}'
            return RosReplies(
                self._node, self._subscriptions, link.server, topic, qos.SHADOW_REPLIES
            )
        return link.replies(purpose, may_wait=True)

    def _add(self, server: str, link: AnyLink, replies: Replies) -> ServerClient:
        self.links[server] = link
        client = self.clients[server] = ServerClient(link, replies, self._stop)
        return client

    def _make_link(self, server: str, *, over_zenoh: bool, is_shadow: bool) -> AnyLink:
        if not over_zenoh:
            return RosLink(
                self._node,
                server,
                lifespan_s=self._lifespan_s,
                stop=self._stop,
                for_fleet=self._role is Role.ROUTER,
                is_shadow=is_shadow,
            )
        # a node whose servers are reached over ROS 2 needs no eclipse-zenoh
        from lerobot_serve.links.zenoh import ZenohServerLink
        from lerobot_serve.zenoh.link import ZenohLink

        if self._zenoh is None:
            self._zenoh = self._own_zenoh = ZenohLink(zenoh_settings(self._parameters))
        return ZenohServerLink(
            self._zenoh,
            node_name(server),
            self._role,
            self._name,
            traffic=Traffic.SHADOW if is_shadow else Traffic.OBSERVATION,
            on_drop=self._on_drop,
            lifespan_s=self._lifespan_s,
        )

    def listen(self, callbacks: Callable[[str], LinkCallbacks]) -> None:
        """Receive what arrives, before `run`; `callbacks` returns those of a server."""
        for server, client in self.clients.items():
            client.listen(callbacks(server), self._make_path)

    def close(self) -> None:
        """Close all clients; `run` has returned."""
        for client in self.clients.values():
            client.end()
        self._subscriptions.close()
        if self._own_zenoh:
            self._own_zenoh.close()
