# SPDX-License-Identifier: Apache-2.0
"""
Open the links to the servers of a robot, as its parameters name them; and the link over ROS 2:
services and topics, and one reply topic for each server.

A robot with several servers has a writer on each topic, so a lost writer identifies its server.
"""

from __future__ import annotations

from functools import partial
import threading

from rclpy.node import Node

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.servers import Loss
from lerobot_serve.edge.session.transport.server_link import (
    ReplyCallbacks,
    ServerLink,
    ServerLinks,
)
from lerobot_serve.local.local_parameters import local_paths
from lerobot_serve.local.path import MakePath
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_client import SessionClient
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.ros.subscriptions import (
    DedicatedSubscriptions,
    LivelinessStatus,
)
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings
from lerobot_serve_interfaces.msg import ActionChunk

REPLY_TOPIC = '~/action_chunk'


class RosServerLink:
    """
    Built by the thread that builds the node; `run` is the body of a thread, which `wake` ends
    together with `stop`.
    """

    def __init__(
        self,
        node: Node,
        servers: tuple[str, ...],
        callbacks: ReplyCallbacks,
        *,
        lifespan_s: float,
        stop: threading.Event,
        make_path: MakePath | None = None,
    ) -> None:
        """`make_path` makes the local path to a server of this host; None: without."""
        self.clients = {
            server: SessionClient(node, server, lifespan_s=lifespan_s, stop=stop)
            for server in servers
        }
        self._callbacks = callbacks
        self._subscriptions = DedicatedSubscriptions(node, ActionChunk, {}, qos.ACTION_CHUNK)
        self._topics = dict(zip(servers, _topics(len(servers)), strict=True))
        self._names = {s: node.resolve_topic_name(topic) for s, topic in self._topics.items()}
        for server, client in self.clients.items():
            if make_path:
                client.local = make_path(callbacks.on_chunk, partial(self._on_gone, server))
        for server, topic in self._topics.items():
            self._subscriptions.add(topic, qos.ACTION_CHUNK, callbacks.on_chunk)
            self._subscriptions.watch_liveliness(topic, partial(self._on_liveliness, server))
            self._subscriptions.add(
                f'{server}/{NO_SESSION_TOPIC}', qos.NO_SESSION, callbacks.on_no_session
            )

    def reply_topic(self, server: str, session_epoch: int) -> str:
        """Return the full name of the reply topic of this server, the same for each session."""
        return self._names[server]

    def publisher_count(self, server: str) -> int:
        """
        Return how many writers of this server are connected, those without liveliness included.
        """
        return self._subscriptions.publisher_count(self._topics[server])

    def _on_liveliness(self, server: str, now: LivelinessStatus) -> None:
        loss = Loss.EXPIRED if now.not_alive_change > 0 else Loss.CLOSED
        self._callbacks.on_presence(server, now.alive, now.alive_change, loss)

    def _on_gone(self, server: str, is_lost: bool) -> None:
        """Thread `local`: sooner than the lease."""
        self._callbacks.on_presence(server, 0, -1, Loss.GONE if is_lost else Loss.CLOSED)

    def run(self, stop: threading.Event) -> None:
        """Dispatch messages until `stop` is set and `wake` was called."""
        self._subscriptions.run(stop)

    def wake(self) -> None:
        self._subscriptions.wake()

    def close(self) -> None:
        """Destroy the subscriptions; call it once `run` has returned."""
        self._subscriptions.close()


def _topics(count: int) -> list[str]:
    """Return the preferred server's topic, then a numbered one for each other server."""
    return [REPLY_TOPIC, *(f'{REPLY_TOPIC}_{number}' for number in range(2, count + 1))]


def open_server_links(
    node: Node,
    runtime: NodeRuntime,
    parameters: EdgeParameters,
    client_id: str,
    callbacks: ReplyCallbacks,
) -> tuple[ServerLinks, list[threading.Thread]]:
    """
    Return the links and the threads that they need. The thread that builds the node. Raises
    UserError for an address that cannot be listened on.
    """
    links: list[ServerLink] = []
    make_path = local_paths(parameters, parameters.max_action_age_s, node.get_logger().info)
    threads = []
    if parameters.servers_over_zenoh:
        links.append(_open_zenoh_link(parameters, client_id, callbacks, make_path))
    if parameters.servers_over_ros:
        link = RosServerLink(
            node,
            parameters.servers_over_ros,
            callbacks,
            lifespan_s=parameters.max_action_age_s,
            stop=runtime.stop,
            make_path=make_path,
        )
        links.append(link)
        threads.append(runtime.thread('replies', partial(link.run, runtime.stop), link.wake))
    return ServerLinks(links), threads


def _open_zenoh_link(
    parameters: EdgeParameters,
    client_id: str,
    callbacks: ReplyCallbacks,
    make_path: MakePath | None,
) -> ServerLink:
    # a robot whose servers are reached over ROS 2 needs no eclipse-zenoh
    from lerobot_serve.edge.session.transport.zenoh_link import ZenohServerLink
    from lerobot_serve.zenoh.link import ZenohLink

    return ZenohServerLink(
        ZenohLink(zenoh_settings(parameters)),
        parameters.servers_over_zenoh,
        client_id,
        callbacks,
        make_path,
    )
