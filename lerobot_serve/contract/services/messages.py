# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of the services, for their clients over any link. Pure; any thread."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.records import (
    OpenSessionResponse,
    ReportOutcomeResponse,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused

R = TypeVar('R')
Decision = TypeVar('Decision', ReportOutcomeResponse, ResetEpisodeResponse)
SAME_VERSION = 'both ends need the same version of lerobot_serve'


def encode_request(request: Struct) -> bytes:
    """Return the bytes of a request. Raises SessionRefused for a value that none may have."""
    try:
        return encode(request)
    except Unencodable as error:
        raise SessionRefused(Refusal.BAD_REQUEST, str(error)) from None


def read(kind: type[R], raw: bytes) -> R:
    """Return a message. Raises ValueError."""
    try:
        return decode(kind, raw)
    except Malformed as error:
        raise ValueError(f'{len(raw)} bytes are no {kind.__name__}') from error


def read_response(kind: type[R], raw: bytes, service: str) -> R:
    """Return the response of a service. Raises ServerUnreachable."""
    try:
        return read(kind, raw)
    except ValueError as error:
        text = f'{service}: the reply cannot be read ({error}); {SAME_VERSION}'
        raise ServerUnreachable(text) from None


def read_decision(kind: type[Decision], raw: bytes) -> Decision:
    """Return a response; instead of one that cannot be read, one that declines and says why."""
    try:
        return read(kind, raw)
    except ValueError as error:
        return kind(text=f'the reply cannot be read ({error}); {SAME_VERSION}')


def check_accepted(server: str, reply: OpenSessionResponse) -> OpenSessionResponse:
    """Return the reply. Raises SessionRefused for a session that a server has not opened."""
    if reply.accepted:
        return reply
    known = reply.code in tuple(Refusal)
    reason = reply.reason or f'{server} gave no reason; {SAME_VERSION}'
    raise SessionRefused(reply.code if known else Refusal.NOT_READY, reason)
