# SPDX-License-Identifier: Apache-2.0
"""Offer std_srvs/Trigger services backed by functions. Executor thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rclpy.node import Node
from std_srvs.srv import Trigger

# returns success, and the message of the response
TriggerHandler = Callable[[], tuple[bool, str]]


def create_trigger_services(node: Node, handlers: dict[str, TriggerHandler]) -> None:
    """Create one service in the private namespace of the node for each handler."""
    for name, handler in handlers.items():
        node.create_service(Trigger, f'~/{name}', partial(_respond, handler))


def _respond(
    handler: TriggerHandler, _: Trigger.Request, response: Trigger.Response
) -> Trigger.Response:
    response.success, response.message = handler()
    return response
