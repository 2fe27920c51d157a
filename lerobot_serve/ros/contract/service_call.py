# SPDX-License-Identifier: Apache-2.0
"""Call a service synchronously from a thread outside the executor, with a timeout."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import queue
import threading
import time
from typing import Any

from rclpy.client import Client
from rclpy.task import Future

POLL_PERIOD_S = 0.1


class ServiceCallFailed(Exception):
    """No response; the text names the service and the timeout."""


def call_service(
    client: Client,
    request: Any,
    timeout_s: float,
    stop: threading.Event | None = None,
    *,
    count_servers: Callable[[], int] | None = None,
) -> Any:
    """
    Return the response. Any thread but the executor's, which must be spinning. Raises
    ServiceCallFailed.

    Ends early when `stop` is set. With `count_servers`, the number of discovered servers, the
    request is sent again to each server that appears meanwhile: a killed server stays discovered
    for some seconds and never responds. The request must then be idempotent.
    """
    if not client.wait_for_service(timeout_sec=min(timeout_s, 1.0)):
        raise ServiceCallFailed(f'{client.srv_name}: service not available')
    completed: queue.SimpleQueue[Future] = queue.SimpleQueue()
    deadline = time.monotonic() + timeout_s
    pending: list[Future] = []
    servers = -1
    try:
        while (left_s := deadline - time.monotonic()) > 0 and not (stop and stop.is_set()):
            before, servers = servers, count_servers() if count_servers else 0
            if servers > before:
                pending.append(client.call_async(request))
                pending[-1].add_done_callback(completed.put)
            with contextlib.suppress(queue.Empty):
                return completed.get(
                    timeout=min(left_s, POLL_PERIOD_S) if count_servers else left_s
                ).result()
    finally:
        for future in pending:
            client.remove_pending_request(future)
    raise ServiceCallFailed(f'{client.srv_name}: no response within {timeout_s:g} s')
