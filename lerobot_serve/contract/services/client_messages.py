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

__all__ = ['close_request', 'decode', 'encode', 'open_request']

RESPONSES: dict[str, type] = {
    'open_session': records.OpenSessionResponse,
    'close_session': records.CloseSessionResponse,
    'reset_episode': records.ResetEpisodeResponse,
    'get_status': records.GetStatusResponse,
}


def open_request(session_request: records.OpenSessionRequest) -> bytes:
    """Return the request of OpenSession. Raises Unencodable."""
    return encode(session_request)


def close_request(client_id: str, session_epoch: int) -> bytes:
    """Return the request of CloseSession. Raises Unencodable."""
    return encode(records.CloseSessionRequest(client_id, session_epoch))


def decode(service: str, raw: bytes) -> Any:
    """Return the response of a service, by its name. Raises Malformed."""
    return decode_record(RESPONSES[service], raw)
