"""A call of the service std_srvs/Trigger that stops a robot. Any thread."""

from __future__ import annotations

from rclpy.node import Node
from std_srvs.srv import Trigger


class StopService:
    """Nothing is called where no service is named."""

    def __init__(self, node: Node, name: str) -> None:
        self._client = node.create_client(Trigger, name) if name else None
        self._log = node.get_logger().error

    def call(self, why: str) -> None:
        """Ask for the stop; the answer is not waited for."""
        if self._client:
            self._client.call_async(Trigger.Request())
            self._log(
                f'called {self._client.srv_name}: {why}; nothing is commanded until ~/reset is '
                'called'
            )
