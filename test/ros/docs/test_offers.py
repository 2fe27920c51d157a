# SPDX-License-Identifier: Apache-2.0
"""Running nodes have the topics, services and actions that docs/messages.md is made from."""

from __future__ import annotations

from typing import Any

from rclpy.action import get_action_server_names_and_types_by_node
from support.nodes.recorder_process import recorder

from lerobot_serve.tools.reference.node_endpoints import Endpoint, NODE_ENDPOINTS, NodeEndpoint


def test_running_nodes_have_what_is_listed(processes, node, wait_until, tmp_path):
    for name in ('policy_server', 'policy_router'):
        processes.start(name, name, namespace='/listed', autostart='false')
    processes.start('edge', 'edge_controller', namespace='/listed')
    processes.start('sim', 'sim_robot', namespace='/listed')
    missing: list[str] = []

    def all_found() -> bool:
        missing[:] = [f'{o.node} {o.name}' for o in NODE_ENDPOINTS if not is_offered(node, o)]
        return not missing

    try:
        words = ('--strategy', 'episodic', '--namespace', 'listed')
        with recorder(tmp_path / 'bags', *words):
            wait_until(all_found, 'the nodes tell what they have')
    finally:
        assert not missing


def is_offered(node: Any, offer: NodeEndpoint) -> bool:
    ask = {
        Endpoint.PUBLISHER: node.get_publisher_names_and_types_by_node,
        Endpoint.SUBSCRIBER: node.get_subscriber_names_and_types_by_node,
        Endpoint.SERVICE: node.get_service_names_and_types_by_node,
        Endpoint.ACTION: lambda *name: get_action_server_names_and_types_by_node(node, *name),
    }[offer.kind]
    try:
        found = dict(ask(offer.node, '/listed'))
    except RuntimeError:
        # the node is not found yet
        return False
    return offer.type in found.get(offer.full_name(f'/listed/{offer.node}'), ())
