# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dashboard`: serves a page for the whole fleet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lerobot_serve.ros_home import ros_home
from lerobot_serve.tools.cli.link_options import add_observer_options, observer_settings

if TYPE_CHECKING:
    from lerobot_serve.tools.dashboard.node import DashboardNode
    from lerobot_serve.tools.dashboard.settings import DashboardSettings

HELP = 'serve a page for the whole fleet: robots, rollouts, servers, incidents'
# the node handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve dashboard --trace-folder traces  | exit status 0 after Ctrl-C, 1 when '
    'it cannot start'
)
ADDRESS, PORT = '127.0.0.1', 8300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--address', default=ADDRESS, help=f'address to listen on ({ADDRESS}: this machine alone)'
    )
    parser.add_argument(
        '--port', type=int, default=PORT, metavar='N', help=f'port, 0 for a free one ({PORT})'
    )
    parser.add_argument(
        '--host-name',
        dest='host_names',
        nargs='+',
        action='extend',
        default=[],
        metavar='NAME',
        help='further names under which the page is opened (localhost and that of this machine)',
    )
    parser.add_argument(
        '--token-file',
        type=Path,
        metavar='FILE',
        help='lines NAME TOKEN of those who may act (below ROS_HOME, made at the first start)',
    )
    parser.add_argument(
        '--print-token',
        action='store_true',
        help='print the address with the token also where the output is no terminal',
    )
    parser.add_argument('--tls-certificate', type=Path, metavar='FILE', help='serve https')
    parser.add_argument('--tls-key', type=Path, metavar='FILE', help='key of the certificate')
    parser.add_argument(
        '--trace-folder', type=Path, metavar='FOLDER', help='traces, to explain incidents'
    )
    parser.add_argument(
        '--capture-folder', type=Path, metavar='FOLDER', help='captures of policy servers'
    )
    add_observer_options(parser, 'show')


def main(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit status. Raises UserError."""
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.dashboard.node import DashboardNode

    settings = dashboard_settings(options)

    def create(runtime: NodeRuntime) -> DashboardNode:
        return DashboardNode(runtime, settings)

    return run(create, [])


def dashboard_settings(options: argparse.Namespace) -> DashboardSettings:
    """Return the settings of a command line. Raises UserError."""
    import sys

    from lerobot_serve.tools.dashboard.settings import DashboardSettings, TOKENS
    from lerobot_serve.zenoh.settings import configuration

    zenoh = observer_settings(options)
    if zenoh:
        configuration(zenoh)
    return DashboardSettings(
        tokens=(options.token_file or ros_home() / TOKENS).expanduser().absolute(),
        address=options.address,
        port=options.port,
        host_names=tuple(options.host_names),
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        trace_folder=options.trace_folder,
        capture_folder=options.capture_folder,
        prints_token=options.print_token or sys.stdout.isatty(),
        zenoh=zenoh,
    )
