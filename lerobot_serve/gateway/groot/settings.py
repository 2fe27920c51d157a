# SPDX-License-Identifier: Apache-2.0
"""Bounds and names of the door groot, from its parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from lerobot_serve.errors import UserError


@dataclass(frozen=True, slots=True)
class GrootSettings:
    """
    mapping                YAML file of names, see gateway/mapping.py; empty: equal names
    language_key           key of the instruction in get_modality_config
    max_message_bytes      of one request; a longer one ends its connection
    max_requests           running requests of all clients together; further ones are refused
    handshake_timeout_s    until a connection speaks ZeroMQ
    heartbeat_interval_s   of pings on idle connections; three unanswered ones end it
    """

    mapping: str = ''
    language_key: str = 'annotation.human.task_description'
    max_message_bytes: int = 16 << 20
    max_requests: int = 256
    handshake_timeout_s: float = 5.0
    heartbeat_interval_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise UserError for what cannot be right."""
        for name, low, high in (
            ('max_message_bytes', 1024, 1 << 28),
            ('max_requests', 1, 65536),
            ('handshake_timeout_s', 0.1, 3600),
            ('heartbeat_interval_s', 0.1, 600),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f'groot: {name} must be in [{low}, {high}], got {value}')
        if not self.language_key:
            raise UserError('groot: language_key must not be empty')

    @classmethod
    def from_parameters(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings; what is not given has its default. Raises UserError."""
        return cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})
