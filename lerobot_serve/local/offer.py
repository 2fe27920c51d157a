# SPDX-License-Identifier: Apache-2.0
"""
What a server offers in the extensions of its reply to OpenSession: where its local path listens,
and the token of the session. A client elsewhere cannot connect there, and ignores it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from lerobot_serve.contract.records import Extension
from lerobot_serve.local.frames import TOKEN_BYTES

KEY = 'lerobot_serve.local'
# a path of a Unix socket; one that begins with @ has no file
Address = Annotated[str, msgspec.Meta(min_length=2, max_length=107)]
Token = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class Offer(msgspec.Struct, frozen=True):
    """`address` and `token` as above; `version` of the frames."""

    address: Address
    token: Token
    version: int


def encode(offer: Offer) -> bytes:
    return msgspec.json.encode(offer)


def take(extensions: Iterable[Extension]) -> tuple[Offer | None, list[Extension]]:
    """Return the offer among extensions, None without one that can be read, and the others."""
    offer, others = None, []
    for each in extensions:
        if each.key == KEY:
            offer = decode(bytes(each.value))
        else:
            others.append(each)
    return offer, others


def decode(value: bytes) -> Offer | None:
    """Return an offer; None for bytes that are not one."""
    try:
        return msgspec.json.decode(value, type=Offer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def socket_address(address: str) -> str:
    """Return what a socket binds or connects to."""
    return '\0' + address[1:] if address.startswith('@') else address
