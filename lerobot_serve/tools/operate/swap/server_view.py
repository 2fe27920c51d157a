# SPDX-License-Identifier: Apache-2.0
"""The state of a policy server as plain data. Immutable; any thread."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.records import ServerStatus

SERVER_STATES = tuple(ServerStatus.State.__members__)


@dataclass(frozen=True, slots=True)
class ServerView:
    """A policy server; `state` is one of SERVER_STATES, or a name of a newer server."""

    name: str
    state: str = 'UNCONFIGURED'
    text: str = ''
    policy: str = ''
    sessions: int = 0
    swap: ServerStatus.Swap = ServerStatus.Swap.NONE
    swap_text: str = ''
