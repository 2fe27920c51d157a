# SPDX-License-Identifier: Apache-2.0
"""Bounds and names of the door groot, from its parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

MB = 10**6


@dataclass(frozen=True, slots=True)
class GrootSettings:
    """
    mapping                YAML file of names, see gateway/callers/mapping.py; empty: equal names
    language_key           key of the instruction in get_modality_config
    max_message_bytes      of one request in all its parts; a longer one ends its connection
    max_requests           running requests of all clients together; further ones are refused
    max_connections        open connections
    handshake_timeout_s    of TLS, and then until a connection has greeted as ZeroMQ does
    read_timeout_s         longest arrival of one message, from its first byte to its last
    write_timeout_s        longest time a client may leave a reply unread
    heartbeat_interval_s   of pings on idle connections; three unanswered ones end it
    """

    mapping: str = ''
    language_key: str = 'annotation.human.task_description'
    max_message_bytes: int = 16 * MB
    max_requests: int = 256
    max_connections: int = 256
    handshake_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    write_timeout_s: float = 10.0
    heartbeat_interval_s: float = 5.0

    @classmethod
    def from_parameters(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings; what is not given has its default."""
        settings = cls(**{f.name: given[f.name] for f in fields(cls) if f.name in given})
        if megabytes := given.get('max_message_mb'):
            return replace(settings, max_message_bytes=megabytes * MB)
        return settings
