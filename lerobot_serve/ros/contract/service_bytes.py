# SPDX-License-Identifier: Apache-2.0
"""Services of ROS 2 that a server offers over the other link, as CDR bytes. Any thread."""

from __future__ import annotations

import time
from typing import Any

from rclpy.serialization import deserialize_message, serialize_message

from lerobot_serve_interfaces.srv import (
    CloseSession,
    GetStatus,
    OpenSession,
    ReportOutcome,
    ResetEpisode,
)

SERVICES: dict[str, Any] = {
    'open_session': OpenSession,
    'close_session': CloseSession,
    'reset_episode': ResetEpisode,
    'get_status': GetStatus,
    # of a router
    'report_outcome': ReportOutcome,
}


def encode(message: Any) -> bytes:
    return bytes(serialize_message(message))


def read_request(service: str, raw: bytes) -> Any:
    """Return the request of a service; no bytes are one without fields. Raises ValueError."""
    kind = SERVICES[service].Request
    return _read(kind, raw) if raw else kind()


def client_id(service: str, request: Any) -> str:
    """Return whom a request speaks for; empty without a client."""
    if isinstance(request, ReportOutcome.Request):
        request = request.outcome
    return getattr(request, 'client_id', '')


def reply_topic(service: str, request: Any) -> str:
    """Return where a request wants replies; empty without a session."""
    return getattr(request, 'reply_topic', '')


def new_response(service: str) -> Any:
    return SERVICES[service].Response()


def request_event(service: str, request: Any) -> bytes:
    """Return the service event of a request, as the introspection of ROS 2 has it."""
    event = SERVICES[service].Event(request=[request])
    return _encode_event(event, event.info.REQUEST_RECEIVED)


def response_event(service: str, response: Any) -> bytes:
    """Return the service event of a response."""
    event = SERVICES[service].Event(response=[response])
    return _encode_event(event, event.info.RESPONSE_SENT)


def _encode_event(event: Any, event_type: int) -> bytes:
    event.info.event_type = event_type
    event.info.stamp.sec, event.info.stamp.nanosec = divmod(time.time_ns(), 1_000_000_000)
    return encode(event)


def _read(kind: Any, raw: bytes) -> Any:
    try:
        return deserialize_message(raw, kind)
    except Exception as error:
        # rclpy raises RMWError, or what a field's setter raises
        raise ValueError(f'{len(raw)} bytes are no {kind.__name__}') from error
