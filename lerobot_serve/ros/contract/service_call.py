"""Calling a service from a thread of one's own, always with a limit of time."""

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
    """No answer came; the text says whom was asked and how long."""


def call_service(
    client: Client,
    request: Any,
    timeout_s: float,
    stop: threading.Event | None = None,
    *,
    offers: Callable[[], int] | None = None,
) -> Any:
    """
    Return the response. Any thread but the executor's, which has to run meanwhile. Raises
    CallFailed.

    Ends early when `stop` is set by then: a closing node waits for no answer. `offers` tells how
    many offer the service: with it, who comes meanwhile is asked, too. A server that was killed is
    there for some seconds more, and its successor does not answer for it. The request must be one
    that may arrive twice.
    """
    if not client.wait_for_service(timeout_sec=min(timeout_s, 1.0)):
        raise ServiceCallFailed(f'{client.srv_name} is not there')
    answered: queue.SimpleQueue[Future] = queue.SimpleQueue()
    deadline = time.monotonic() + timeout_s
    asked: list[Future] = []
    there = -1
    try:
        while (left_s := deadline - time.monotonic()) > 0 and not (stop and stop.is_set()):
            before, there = there, offers() if offers else 0
            if there > before:
                asked.append(client.call_async(request))
                asked[-1].add_done_callback(answered.put)
            with contextlib.suppress(queue.Empty):
                return answered.get(
                    timeout=min(left_s, POLL_PERIOD_S) if offers else left_s
                ).result()
    finally:
        for future in asked:
            client.remove_pending_request(future)
    raise ServiceCallFailed(f'{client.srv_name} did not answer within {timeout_s:g} s')
