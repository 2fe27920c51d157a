# SPDX-License-Identifier: Apache-2.0
"""Swap the policy of a running server from a test, and follow how it ends."""

from __future__ import annotations

from rcl_interfaces.srv import GetParameters
from rclpy.node import Node

from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import GetStatus, SwapPolicy
from support.nodes.service_asking import ask as ask_service
from support.waiting import wait_until

LIMIT_S = 60.0
LOADING, DONE, FAILED = (
    ServerStatus.SWAP_LOADING,
    ServerStatus.SWAP_DONE,
    ServerStatus.SWAP_FAILED,
)


class Swapper:
    """Asks one server; used by the test's thread."""

    def __init__(self, node: Node, server: str = '/policy_server') -> None:
        self._node = node
        self._swap = node.create_client(SwapPolicy, f'{server}/swap_policy')
        self._status = node.create_client(GetStatus, f'{server}/get_status')
        self._parameters = node.create_client(GetParameters, f'{server}/get_parameters')

    def begin(self, path: object) -> SwapPolicy.Response:
        request = SwapPolicy.Request(policy_path=str(path))
        return ask_service(self._node, self._swap, request)

    @property
    def status(self) -> ServerStatus:
        return ask_service(self._node, self._status, GetStatus.Request()).status

    @property
    def policy_path(self) -> str:
        request = GetParameters.Request(names=['policy_path'])
        return ask_service(self._node, self._parameters, request).values[0].string_value

    def ended(self) -> ServerStatus:
        """Return the status once the swap has ended."""

        def found() -> ServerStatus | None:
            status = self.status
            return None if status.swap == LOADING else status

        return wait_until(found, 'the swap has ended')

    def run(self, path: object) -> ServerStatus:
        """Swap, and return the status once that is done."""
        reply = self.begin(path)
        assert reply.accepted, reply.text
        status = self.ended()
        assert status.swap == DONE, status.swap_text
        return status
