# SPDX-License-Identifier: Apache-2.0
"""Bounds of a door over HTTP, from its parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from lerobot_serve.errors import UserError

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class WebSettings:
    """
    max_message_mb   body of a request, or message of a websocket
    read_timeout_s   longest arrival of one message, from its first byte to its last
    write_timeout_s  longest time a client may leave a reply unread
    max_connections  open connections
    mapping          YAML file of names, see gateway/callers/mapping.py; empty: equal names
    """

    max_message_mb: float = 16
    read_timeout_s: float = 10.0
    write_timeout_s: float = 10.0
    max_connections: int = 256
    mapping: str = ''

    def __post_init__(self) -> None:
        """Raise UserError for what cannot be right."""
        for name, low, high in (
            ('max_message_mb', 0.001, 256),
            ('read_timeout_s', 0.1, 3600),
            ('write_timeout_s', 0.1, 3600),
            ('max_connections', 1, 65536),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f'{name} must be in [{low}, {high}], got {value}')

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * MEGABYTE)

    @classmethod
    def from_parameters(cls, given: Mapping[str, Any]) -> Self:
        """
        Return the settings; what is not given has its default, and parameters of the exposure are
        not read. Raises UserError.
        """
        return cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})
