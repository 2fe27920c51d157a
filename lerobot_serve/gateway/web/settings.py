# SPDX-License-Identifier: Apache-2.0
"""Bounds of the doors that read bytes here, from their parameters, which are checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class WebSettings:
    """
    max_message_mb   body of a request, or message in all its parts
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

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * MEGABYTE)

    @classmethod
    def from_parameters(cls, given: Mapping[str, Any]) -> Self:
        """
        Return the settings; what is not given has its default, and parameters of the exposure are
        not read.
        """
        return cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})


@dataclass(frozen=True, slots=True)
class OpenpiSettings(WebSettings):
    """ping_interval_s: a silent client is asked after it, and disconnected after twice as long."""

    ping_interval_s: float = 20.0
