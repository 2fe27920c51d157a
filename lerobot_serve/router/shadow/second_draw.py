# SPDX-License-Identifier: Apache-2.0
"""Choose the replica of a second draw. The thread `shadow`; reads replicas without the lock."""

from __future__ import annotations

from collections.abc import Mapping

from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.sessions import ShadowClient

# a replica with this load or more serves no second draws
MAX_LOAD = 0.7


class SecondDraws:
    """`clients` are those of all replicas, for second draws."""

    def __init__(
        self, replicas: Mapping[str, Replica], clients: Mapping[str, ShadowClient]
    ) -> None:
        self._replicas, self._clients = replicas, clients

    def client_for(self, session: ClientSession) -> ShadowClient | None:
        """Return the client for a session: of its last choice, unless that is busy."""
        places = session.places.get(session.slot, ())
        if not places:
            return None
        replica = self._replicas[places[-1]]
        has_time = replica.is_ready and replica.placement_load < MAX_LOAD
        return self._clients[replica.name] if has_time else None
