# SPDX-License-Identifier: Apache-2.0
"""
Open the links to the servers of a robot, as its parameters name them. Over ROS 2 each server has a
reply topic: a robot with several servers has a writer on each, so a lost writer identifies its
server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading

from rclpy.node import Node

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.ros.node_links import NodeLinks
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.zenoh.keys import Role

REPLY_TOPIC = '~/action_chunk'


def open_server_links(
    node: Node,
    runtime: NodeRuntime,
    parameters: EdgeParameters,
    client_id: str,
    callbacks: Callable[[str], LinkCallbacks],
) -> tuple[NodeLinks, list[threading.Thread]]:
    """
    Return the links and the threads that they need; `callbacks` returns those of a server. The
    thread that builds the node. Raises UserError for an address that cannot be listened on.
    """
    links = NodeLinks(
        node,
        Role.ROBOT,
        client_id,
        parameters,
        lifespan_s=parameters.max_action_age_s,
        stop=runtime.stop,
    )
    for server in parameters.servers_over_zenoh:
        links.add(server, '', over_zenoh=True)
    for number, server in enumerate(parameters.servers_over_ros, 1):
        # the preferred server's, then a numbered one for each other server
        topic = f'{REPLY_TOPIC}_{number}' if number > 1 else REPLY_TOPIC
        links.add(server, topic, over_zenoh=False)
    links.listen(callbacks)
    if not parameters.servers_over_ros:
        return links, []
    return links, [runtime.thread('replies', partial(links.run, runtime.stop), links.wake)]
