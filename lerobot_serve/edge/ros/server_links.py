# SPDX-License-Identifier: Apache-2.0
"""Open the links to the servers of a robot, as its parameters name them."""

from __future__ import annotations

from functools import partial
import threading

from rclpy.node import Node

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.ros.ros_link import RosServerLink
from lerobot_serve.edge.session.transport.server_link import (
    ReplyCallbacks,
    ServerLink,
    ServerLinks,
)
from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings


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
    threads = []
    if parameters.servers_over_zenoh:
        links.append(_open_zenoh_link(parameters, client_id, callbacks))
    if parameters.servers_over_ros:
        link = RosServerLink(
            node,
            parameters.servers_over_ros,
            callbacks,
            lifespan_s=parameters.max_action_age_s,
            stop=runtime.stop,
        )
        links.append(link)
        threads.append(runtime.thread('replies', partial(link.run, runtime.stop), link.wake))
    return ServerLinks(links), threads


def _open_zenoh_link(
    parameters: EdgeParameters, client_id: str, callbacks: ReplyCallbacks
) -> ServerLink:
    # a robot whose servers are reached over ROS 2 needs no eclipse-zenoh
    from lerobot_serve.edge.session.transport.zenoh_link import ZenohServerLink
    from lerobot_serve.zenoh.link import ZenohLink

    return ZenohServerLink(
        ZenohLink(zenoh_settings(parameters)),
        parameters.servers_over_zenoh,
        client_id,
        service_bytes,
        callbacks,
    )
