# SPDX-License-Identifier: Apache-2.0
"""
Call a service synchronously from a thread outside the executor, with a timeout.

A server drops its response to a client that it has not discovered yet, and neither side sees
that before the timeout. So an idempotent request is repeated, and any other is sent after
wait_until_discovered.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import math
import queue
import threading
import time
from typing import Any

from rcl_interfaces.srv import GetParameters
from rclpy.client import Client
from rclpy.node import Node
from rclpy.task import Future

POLL_PERIOD_S = 0.1
REPEAT_PERIOD_S = 1.0


class ServiceCallFailed(Exception):
    """No response; the text names the service and the timeout."""


def call_service(
    client: Client,
    request: Any,
    timeout_s: float,
    stop: threading.Event | None = None,
    *,
    idempotent: bool = False,
    count_servers: Callable[[], int] | None = None,
) -> Any:
    """
    Return the response. Any thread but the executor's, which must be spinning. Raises
    ServiceCallFailed.

    Ends early when `stop` is set. An idempotent request is sent again each REPEAT_PERIOD_S and,
    with `count_servers`, the number of discovered servers, at once to each server that appears
    meanwhile: a killed server stays discovered for some seconds and never responds. Any other
    request is sent once.
    """
    if not client.wait_for_service(timeout_sec=min(timeout_s, 1.0)):
        raise ServiceCallFailed(f'{client.srv_name}: service not available')
    completed: queue.SimpleQueue[Future] = queue.SimpleQueue()
    deadline = time.monotonic() + timeout_s
    pending: list[Future] = []
    servers, sent_at = 0, -math.inf
    try:
        while (left_s := deadline - time.monotonic()) > 0 and not (stop and stop.is_set()):
            before, servers = servers, count_servers() if count_servers else 0
            is_due = servers > before or time.monotonic() - sent_at >= REPEAT_PERIOD_S
            if not pending or (idempotent and is_due):
                pending.append(client.call_async(request))
                pending[-1].add_done_callback(completed.put)
                sent_at = time.monotonic()
            with contextlib.suppress(queue.Empty):
                return completed.get(timeout=min(left_s, POLL_PERIOD_S)).result()
    finally:
        for future in pending:
            client.remove_pending_request(future)
    raise ServiceCallFailed(f'{client.srv_name}: no response within {timeout_s:g} s')


def wait_until_discovered(node: Node, client: Client, timeout_s: float) -> None:
    """
    Wait until the node that offers the service of `client` has discovered `client`, for at most
    `timeout_s`; returns after a second when that node offers no parameters. Any thread but the
    executor's, which must be spinning.

    A node discovers the endpoints of another one in the order of their creation: a response to a
    later client shows that the earlier one is discovered.
    """
    owner = client.srv_name.rpartition('/')[0]
    later = node.create_client(GetParameters, f'{owner}/get_parameters')
    try:
        with contextlib.suppress(ServiceCallFailed):
            call_service(later, GetParameters.Request(), timeout_s, idempotent=True)
    finally:
        node.destroy_client(later)
