# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dashboard`: serves a page for the whole fleet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import sys
from typing import Annotated

from lerobot_serve.ros_home import ros_home
from lerobot_serve.tools.cli.arguments import Endpoints, OBSERVED, ObserverOptions
from lerobot_serve.tools.cli.signature import Argument, verb_of

HELP = 'serve a page for the whole fleet: robots, rollouts, servers, incidents'
# the node handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve dashboard --trace-folder traces  | exit status 0 after Ctrl-C, 1 when '
    'it cannot start'
)
ADDRESS, PORT = '127.0.0.1', 8300


def dashboard(
    *,
    address: Annotated[
        str,
        Argument(f'address to listen on ({ADDRESS}: this machine alone)', names_default=False),
    ] = ADDRESS,
    port: Annotated[int, Argument('port, 0 for a free one', 'N')] = PORT,
    host_names: Annotated[
        Sequence[str],
        Argument(
            'further names under which the page is opened (localhost and that of this machine)',
            'NAME',
            flags=('--host-name',),
            nargs='+',
        ),
    ] = (),
    token_file: Annotated[
        Path | None,
        Argument(
            'lines NAME TOKEN of those who may act (below ROS_HOME, made at the first start)',
            'FILE',
        ),
    ] = None,
    print_token: Annotated[
        bool,
        Argument('print the address with the token also where the output is no terminal'),
    ] = False,
    tls_certificate: Annotated[Path | None, Argument('serve https', 'FILE')] = None,
    tls_key: Annotated[Path | None, Argument('key of the certificate', 'FILE')] = None,
    trace_folder: Annotated[
        Path | None, Argument('traces, to explain incidents', 'FOLDER')
    ] = None,
    capture_folder: Annotated[
        Path | None, Argument('captures of policy servers', 'FOLDER')
    ] = None,
    connect: Annotated[Endpoints, Argument(f'show {OBSERVED}', 'ENDPOINT', nargs='+')] = (),
    observer: ObserverOptions,
) -> int:
    """Serve until a signal; return the exit status. Raises UserError."""
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.dashboard.node import DashboardNode
    from lerobot_serve.tools.dashboard.settings import DashboardSettings, TOKENS
    from lerobot_serve.zenoh.settings import configuration

    zenoh = observer.settings(connect)
    if zenoh:
        configuration(zenoh)
    settings = DashboardSettings(
        tokens=(token_file or ros_home() / TOKENS).expanduser().absolute(),
        address=address,
        port=port,
        host_names=tuple(host_names),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        trace_folder=trace_folder,
        capture_folder=capture_folder,
        prints_token=print_token or sys.stdout.isatty(),
        zenoh=zenoh,
    )

    def create(runtime: NodeRuntime) -> DashboardNode:
        return DashboardNode(runtime, settings)

    return run(create, [])


add_arguments, main = verb_of(dashboard)
