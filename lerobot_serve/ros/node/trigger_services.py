"""Services std_srvs/Trigger, each answered with what its function returns. The executor thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rclpy.node import Node
from std_srvs.srv import Trigger

# whether something was done, and what is so now
TriggerHandler = Callable[[], tuple[bool, str]]


def create_trigger_services(node: Node, acts: dict[str, TriggerHandler]) -> None:
    """Create a service below the node's name for each."""
    for name, act in acts.items():
        node.create_service(Trigger, f'~/{name}', partial(_answer, act))


def _answer(
    act: TriggerHandler, _: Trigger.Request, response: Trigger.Response
) -> Trigger.Response:
    response.success, response.message = act()
    return response
