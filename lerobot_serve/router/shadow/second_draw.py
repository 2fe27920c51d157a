# SPDX-License-Identifier: Apache-2.0
"""Select the replica of a second draw. The thread `shadow`; reads replicas without the lock."""

from __future__ import annotations

from collections.abc import Mapping

from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.sessions import ShadowClient

# a replica with this load or more serves no second draws
MAX_LOAD = 0.7


class SecondDraws:
    """Selects a client among `clients`, which has one per replica."""

    def __init__(
        self, replicas: Mapping[str, Replica], clients: Mapping[str, ShadowClient]
    ) -> None:
        self._replicas, self._clients = replicas, clients

    def client_for(self, session: ClientSession) -> ShadowClient | None:
        """Return the client of the session's last replica; None if that is busy or not ready."""
        places = session.places.get(session.slot, ())
        if not places:
            return None
        replica = self._replicas[places[-1]]
        is_idle = replica.is_ready and replica.placement_load < MAX_LOAD
        return self._clients[replica.name] if is_idle else None
