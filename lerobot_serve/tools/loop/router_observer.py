# SPDX-License-Identifier: Apache-2.0
"""Read the state of the router for the conductor, by one node that stays. Main thread."""

from __future__ import annotations

from types import TracebackType

from lerobot_serve.errors import UserError
from lerobot_serve.tools.loop.decisions import rollout_facts, RolloutFacts
from lerobot_serve.tools.loop.settings import CALL_LIMIT_S
from lerobot_serve.tools.operate.discovery.known_nodes import known_nodes
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.names import resolve_router


class RouterObserver:
    """A context manager; `router` is the name that was given, empty for the only one."""

    def __init__(self, router: str) -> None:
        """Raises UserError when ROS does not start."""
        self._given, self._name = router, ''
        self._client = FleetClient(CALL_LIMIT_S, known=known_nodes())

    def observe(self) -> RolloutFacts:
        """Return what the router says now; why it says nothing, if it does not."""
        try:
            if not self._name:
                found = self._client.find_routers(self._given)
                self._name = resolve_router(self._given, found, self._client.known_routers())
            return rollout_facts(self._client.router(self._name))
        except UserError as error:
            # another one may have its place
            self._name = ''
            return RolloutFacts(text=str(error))

    def __enter__(self) -> RouterObserver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.__exit__(kind, error, trace)
