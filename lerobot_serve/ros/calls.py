"""Calling a service from a thread of one's own, always with a limit of time."""

from __future__ import annotations

import threading
from typing import Any

from rclpy.client import Client


class CallFailed(Exception):
    """No answer came; the text says whom was asked and how long."""


def call(
    client: Client, request: Any, timeout_s: float, stop: threading.Event | None = None
) -> Any:
    """
    Return the response. Any thread but the executor's, which has to run meanwhile. Raises
    CallFailed.

    Ends early when `stop` is set by then: a closing node waits for no answer.
    """
    if not client.wait_for_service(timeout_sec=min(timeout_s, 1.0)):
        raise CallFailed(f'{client.srv_name} is not there')
    done = threading.Event()
    future = client.call_async(request)
    future.add_done_callback(lambda _: done.set())
    if not done.wait(timeout_s) or (stop and stop.is_set()):
        client.remove_pending_request(future)
        raise CallFailed(f'{client.srv_name} did not answer within {timeout_s:g} s')
    return future.result()
