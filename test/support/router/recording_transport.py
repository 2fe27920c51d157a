# SPDX-License-Identifier: Apache-2.0
"""
A ReplicaTransport and RequestObserver without ROS that records its calls.

Called by the threads of the dispatcher; read after they have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lerobot_serve.router.data_path.request_observer import RequestObserver


def recorded(kind: str, kept: Callable[..., object] = lambda *call: call) -> Callable[..., None]:
    """Return a method that appends what is `kept` of its arguments to the deque `kind`."""

    def method(self: RecordingTransport, *call: object) -> None:
        self.called()
        getattr(self, kind).append(kept(*call))

    return method


class RecordingTransport(RequestObserver):
    """
    See the module. Its deques hold the last `capacity` calls of each kind, oldest first. Every
    call runs `called`, which a subclass may override.
    """

    # server and bytes; session and bytes; request, status and text; name and session epoch
    KINDS = ('sent', 'replies', 'failures', 'unknown')
    # seconds until the next request is admitted, of each failure
    KINDS += ('retries',)
    # session, request and placement; session and server; request, server and reply
    KINDS += ('decisions', 'reopened', 'served_by')
    # session, header and execution report, twice; request and reason
    KINDS += ('heard', 'refused', 'ended')

    def __init__(self, capacity: int | None = None) -> None:
        for kind in self.KINDS:
            setattr(self, kind, deque(maxlen=capacity))
        self.wakes = 0

    def called(self) -> None:
        """Do nothing."""

    send = recorded('sent')
    reply = recorded('replies')
    reopen_session = recorded('reopened')
    refuse_unknown = recorded('unknown', lambda header, name, _: (name, header.session_epoch))
    on_placed = recorded(
        'decisions', lambda request, placed, *_: (request.session, request, placed)
    )
    on_replied = recorded('served_by', lambda request, server, _, reply: (request, server, reply))
    on_dropped = recorded('ended')
    on_requested = recorded('heard', lambda session, _, *heard: (session, *heard))
    on_refused = recorded('refused')

    def fail(self, request, status, text: str, retry_after_s: float = 0.0) -> None:
        self.called()
        self.retries.append(retry_after_s)
        self.failures.append((request, status, text))

    def wake(self) -> None:
        self.called()
        self.wakes += 1
