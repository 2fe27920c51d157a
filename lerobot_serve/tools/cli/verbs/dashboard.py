# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dashboard`: serves a page for the whole fleet."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli.arguments import Endpoints, OBSERVED, ObserverOptions
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.dashboard.settings import DashboardSettings

HELP = 'serve a page for the whole fleet: robots, rollouts, servers, incidents'
# the node handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve dashboard --trace-folder traces  | exit status 0 after Ctrl-C, 1 when '
    'it cannot start'
)


def dashboard(
    *,
    settings: DashboardSettings,
    connect: Annotated[Endpoints, Argument(f'show {OBSERVED}', 'ENDPOINT', nargs='+')] = (),
    observer: ObserverOptions,
) -> int:
    """Serve until a signal; return the exit status. Raises UserError."""
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.dashboard.node import DashboardNode
    from lerobot_serve.zenoh.settings import configuration

    zenoh = observer.settings(connect)
    if zenoh:
        configuration(zenoh)

    def create(runtime: NodeRuntime) -> DashboardNode:
        return DashboardNode(runtime, settings, zenoh)

    return run(create, [])


add_arguments, main = verb_of(dashboard)
