# SPDX-License-Identifier: Apache-2.0
"""Settings of the door for openpi's client. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.web.settings import WebSettings


@dataclass(frozen=True, slots=True)
class OpenpiSettings(WebSettings):
    """ping_interval_s: a silent client is asked after it, and disconnected after twice as long."""

    ping_interval_s: float = 20.0

    def __post_init__(self) -> None:
        """Raise UserError for what cannot be right."""
        WebSettings.__post_init__(self)
        if not 0.1 <= self.ping_interval_s <= 3600:
            raise UserError(f'ping_interval_s must be in [0.1, 3600], got {self.ping_interval_s}')
