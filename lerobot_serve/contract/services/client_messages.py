# SPDX-License-Identifier: Apache-2.0
"""
The services of the contract for a client without ROS: ServiceMessages of zenoh.session_client, as
ros.contract.service_bytes is with ROS. Pure; any thread.
"""

from __future__ import annotations

from typing import Any

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode as decode_record
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.services.session import SessionRequest
from lerobot_serve.contract.types import KeyValue

__all__ = ['close_request', 'decode', 'encode', 'open_request']

RESPONSES: dict[str, type] = {
    'open_session': records.OpenSessionResponse,
    'close_session': records.CloseSessionResponse,
    'reset_episode': records.ResetEpisodeResponse,
    'get_status': records.GetStatusResponse,
}


def open_request(session_request: SessionRequest) -> bytes:
    """Return the request of OpenSession. Raises Unencodable."""
    names = records.OpenSessionRequest.__struct_fields__
    fields = {name: getattr(session_request, name) for name in names} | {
        'tags': tuple(KeyValue(*tag) for tag in session_request.tags),
        'extensions': tuple(records.Extension(*each) for each in session_request.extensions),
    }
    return encode(records.OpenSessionRequest(**fields))


def close_request(client_id: str, session_epoch: int) -> bytes:
    """Return the request of CloseSession. Raises Unencodable."""
    return encode(records.CloseSessionRequest(client_id, session_epoch))


def decode(service: str, raw: bytes) -> Any:
    """Return the response of a service, by its name. Raises Malformed."""
    return decode_record(RESPONSES[service], raw)
