# SPDX-License-Identifier: Apache-2.0
"""Read the state of the router for the conductor, by one node that stays. Main thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib

from lerobot_serve.errors import UserError
from lerobot_serve.tools.loop.decisions import rollout_facts, RolloutFacts
from lerobot_serve.tools.loop.settings import CALL_LIMIT_S
from lerobot_serve.tools.operate.discovery.known_nodes import known_nodes
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.names import resolve_router


@contextlib.contextmanager
def router_observer(given: str) -> Iterator[Callable[[], RolloutFacts]]:
    """
    Yield what returns the state of the router now, or why there is none; `given` is its name,
    empty for the only one. Raises UserError when ROS does not start.
    """
    name = ''

    def observe() -> RolloutFacts:
        nonlocal name
        try:
            if not name:
                name = resolve_router(given, client.find_routers(given), client.known_routers())
            return rollout_facts(client.router(name))
        except UserError as error:
            # another one may have its place
            name = ''
            return RolloutFacts(text=str(error))

    with FleetClient(CALL_LIMIT_S, known=known_nodes()) as client:
        yield observe
