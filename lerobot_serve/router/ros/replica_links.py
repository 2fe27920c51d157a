# SPDX-License-Identifier: Apache-2.0
"""The replicas of a router, and its policy in shadow, over both links."""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import ParamSpec, TYPE_CHECKING

from rclpy.node import Node

from lerobot_serve.contract.names import is_over_zenoh
from lerobot_serve.local.local_parameters import local_paths
from lerobot_serve.local.path import MakePath
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.ros.replica_clients import (
    OnReply,
    OnStatus,
    ReplicaClient,
    ReplicaClients,
)
from lerobot_serve.router.ros.shadow_clients import OnReply as ShadowReply
from lerobot_serve.router.ros.shadow_clients import ShadowClients, ShadowSession

if TYPE_CHECKING:
    from lerobot_serve.router.ros.zenoh_replicas import (
        ZenohReplicaClient,
        ZenohReplicas,
        ZenohShadowClients,
    )
    from lerobot_serve.zenoh.link import ZenohLink

P = ParamSpec('P')


def open_replica_links(
    node: Node,
    parameters: RouterParameters,
    link: ZenohLink | None,
    *,
    on_drop: Callable[[str], None],
    stop: threading.Event,
) -> ReplicaLinks:
    """
    Return the clients of all replicas. The thread of a transition. Raises ParameterError for a
    replica over Zenoh without `link`.
    """
    over_zenoh = tuple(server for server in parameters.servers if is_over_zenoh(server))
    lifespan_s = parameters.observation_lifespan_s
    make_path = local_paths(parameters, lifespan_s, node.get_logger().info)
    return ReplicaLinks(
        ReplicaClients(
            node,
            tuple(server for server in parameters.servers if server not in over_zenoh),
            lifespan_s=lifespan_s,
            stop=stop,
            on_drop=on_drop,
            make_path=make_path,
        ),
        _open_zenoh_replicas(node, over_zenoh, link, on_drop, lifespan_s, make_path)
        if over_zenoh
        else None,
    )


def _open_zenoh_replicas(
    node: Node,
    servers: tuple[str, ...],
    link: ZenohLink | None,
    on_drop: Callable[[str], None],
    lifespan_s: float,
    make_path: MakePath | None,
) -> ZenohReplicas:
    # a router whose replicas are reached over ROS 2 needs no eclipse-zenoh
    from lerobot_serve.router.ros.zenoh_replicas import ZenohReplicas

    return ZenohReplicas(
        required_link(link, servers[0]),
        servers,
        node.get_fully_qualified_name(),
        run=node.executor.create_task,
        on_drop=on_drop,
        lifespan_s=lifespan_s,
        make_path=make_path,
    )


def required_link(link: ZenohLink | None, server: str) -> ZenohLink:
    """Return the link. Raises ParameterError without one."""
    if link is None:
        raise ParameterError(
            f'{server} is reached over Zenoh, and zenoh_connect is empty; set it to the endpoints '
            'of the servers or of a Zenoh router, such as tcp/192.168.1.5:7447'
        )
    return link


def one_by_one(lock: threading.Lock, deliver: Callable[P, None]) -> Callable[P, None]:
    """Return `deliver` for replies of all links, which arrive in threads of their own."""

    def deliver_alone(*reply: P.args, **named: P.kwargs) -> None:
        with lock:
            deliver(*reply, **named)

    return deliver_alone


class ReplicaLinks:
    """The replicas over both links. Threads as in ReplicaClients and ZenohReplicas."""

    def __init__(self, ros: ReplicaClients, over_zenoh: ZenohReplicas | None) -> None:
        self.ros, self.zenoh = ros, over_zenoh
        self.clients: dict[str, ReplicaClient | ZenohReplicaClient] = {
            **ros.clients,
            **(over_zenoh.clients if over_zenoh else {}),
        }

    def _of(self, server: str) -> ReplicaClients | ZenohReplicas:
        return self.zenoh if self.zenoh and is_over_zenoh(server) else self.ros

    def listen(self, on_reply: OnReply, on_status: OnStatus) -> None:
        """Subscribe to replies and status of all servers, before `run`."""
        deliver = one_by_one(threading.Lock(), on_reply)
        self.ros.listen(deliver, on_status)
        if self.zenoh:
            self.zenoh.listen(deliver, on_status)

    def run(self, stop: threading.Event) -> None:
        """Deliver replies over ROS 2 until `stop` is set and `wake` is called."""
        self.ros.run(stop)

    def wake(self) -> None:
        self.ros.wake()

    def is_available(self, server: str) -> bool:
        """Return whether a server offers its services and is not silent; False after `close`."""
        return self._of(server).is_available(server)

    def link_problem(self, server: str) -> str:
        """Return why Zenoh cannot use a server, with the remedy; empty when it can."""
        return self.zenoh.link_problem(server) if self.zenoh and is_over_zenoh(server) else ''

    def close(self) -> None:
        """Close all endpoints; `run` has returned."""
        self.ros.close()
        if self.zenoh:
            self.zenoh.close()


def open_shadow_links(
    node: Node,
    parameters: RouterParameters,
    replicas: ReplicaLinks,
    link: ZenohLink | None,
    stop: threading.Event,
) -> ShadowReplyLinks | None:
    """Return the clients of the policy in shadow; None without a shadow_server."""
    server = parameters.shadow_server
    if not server:
        return None
    over_zenoh = is_over_zenoh(server)
    ros = ShadowClients(
        node,
        '' if over_zenoh else server,
        replicas.ros.clients,
        lifespan_s=parameters.observation_lifespan_s,
        stop=stop,
    )
    if not (over_zenoh or replicas.zenoh):
        return ShadowReplyLinks(ros, None)
    from lerobot_serve.router.ros.zenoh_replicas import ZenohShadowClients

    return ShadowReplyLinks(
        ros,
        ZenohShadowClients(
            required_link(link, server),
            server if over_zenoh else '',
            node.get_fully_qualified_name(),
            replicas.zenoh.clients if replicas.zenoh else {},
        ),
    )


class ShadowReplyLinks:
    """Threads as in ShadowClients and ZenohShadowClients."""

    def __init__(self, ros: ShadowClients, over_zenoh: ZenohShadowClients | None) -> None:
        self._ros, self._zenoh = ros, over_zenoh
        shadow = ros.shadow or (over_zenoh.shadow if over_zenoh else None)
        assert shadow is not None
        self.shadow: ShadowSession = shadow
        self.second_draws: dict[str, ShadowSession] = {
            **ros.second_draws,
            **(over_zenoh.second_draws if over_zenoh else {}),
        }

    def listen(self, on_chunk: ShadowReply, on_second_draw: ShadowReply) -> None:
        """Subscribe to all replies, before `run`."""
        lock = threading.Lock()
        deliver = one_by_one(lock, on_chunk), one_by_one(lock, on_second_draw)
        self._ros.listen(*deliver)
        if self._zenoh:
            self._zenoh.listen(*deliver)

    def run(self, stop: threading.Event) -> None:
        """Deliver replies over ROS 2 until `stop` is set and `wake` is called."""
        self._ros.run(stop)

    def wake(self) -> None:
        self._ros.wake()

    def close(self) -> None:
        """Close all endpoints; `run` has returned."""
        self._ros.close()
        if self._zenoh:
            self._zenoh.close()
