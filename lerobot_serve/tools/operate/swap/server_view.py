# SPDX-License-Identifier: Apache-2.0
"""The state of a policy server as plain data. Immutable; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SERVER_STATES = ('UNCONFIGURED', 'INACTIVE', 'ACTIVE', 'DRAINING', 'FAILED')


class SwapPhase(Enum):
    """How the last swap of a server ended; UNKNOWN is one of a newer server."""

    NONE = 'none'
    LOADING = 'loading'
    DONE = 'done'
    FAILED = 'failed'
    UNKNOWN = 'unknown'


@dataclass(frozen=True, slots=True)
class ServerView:
    """A policy server; `state` is one of SERVER_STATES."""

    name: str
    state: str = 'UNCONFIGURED'
    text: str = ''
    policy: str = ''
    sessions: int = 0
    swap: SwapPhase = SwapPhase.NONE
    swap_text: str = ''
