# SPDX-License-Identifier: Apache-2.0
"""Bounds and names of the door groot, from its parameters. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.gateway.web.settings import WebSettings


@dataclass(frozen=True, slots=True)
class GrootSettings(WebSettings):
    """
    language_key           key of the instruction in get_modality_config
    max_requests           running requests of all clients together; further ones are refused
    handshake_timeout_s    of TLS, and then until a connection has greeted as ZeroMQ does
    heartbeat_interval_s   of pings on idle connections; three unanswered ones end it
    """

    language_key: str = 'annotation.human.task_description'
    max_requests: int = 256
    handshake_timeout_s: float = 5.0
    heartbeat_interval_s: float = 5.0
