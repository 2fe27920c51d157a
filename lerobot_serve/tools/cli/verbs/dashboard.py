# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve dashboard`: serves a page for the whole fleet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

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
ADDRESS, PORT, DEFAULT_SITE = '127.0.0.1', 8300, 'default'


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
    _add_link_options(parser)


def _add_link_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--connect',
        metavar='ENDPOINT',
        nargs='+',
        action='extend',
        default=[],
        help='show requests and replies over Zenoh, too: endpoints of servers and routers, such '
        'as tcp/192.168.1.5:7447',
    )
    parser.add_argument(
        '--site', default=DEFAULT_SITE, help=f'the zenoh_site of the nodes ({DEFAULT_SITE})'
    )
    parser.add_argument(
        '--keys', metavar='FOLDER', type=Path, help="zenoh_keys: an operator's keys"
    )


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
    import os
    import sys

    from lerobot_serve.errors import UserError
    from lerobot_serve.tools.dashboard.settings import DashboardSettings, TOKENS
    from lerobot_serve.zenoh.settings import configuration, ZenohSettings

    if (options.keys or options.site != DEFAULT_SITE) and not options.connect:
        raise UserError('--keys and --site are of --connect; give it the endpoints to show')
    zenoh = ZenohSettings(options.site, tuple(options.connect), keys=options.keys)
    if options.connect:
        configuration(zenoh)
    home = Path(os.environ.get('ROS_HOME') or Path.home() / '.ros')
    return DashboardSettings(
        tokens=(options.token_file or home / TOKENS).expanduser().absolute(),
        address=options.address,
        port=options.port,
        host_names=tuple(options.host_names),
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        trace_folder=options.trace_folder,
        capture_folder=options.capture_folder,
        prints_token=options.print_token or sys.stdout.isatty(),
        zenoh=zenoh if options.connect else None,
    )
