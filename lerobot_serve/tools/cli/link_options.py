# SPDX-License-Identifier: Apache-2.0
"""The options of verbs that connect to a Zenoh link: `link`, `doctor`, `record` and `rerun`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.zenoh.settings import ZenohSettings

CLIENT = 'lerobot-serve-link'
DEFAULT_SITE = 'default'


def add_link_options(parser: argparse.ArgumentParser, connect_help: str) -> None:
    """Add the settings of a link, named as the parameters of the nodes without zenoh_."""
    parser.add_argument(
        '--connect',
        nargs='+',
        action='extend',
        default=[],
        metavar='ENDPOINT',
        help=connect_help,
    )
    parser.add_argument(
        '--listen',
        nargs='+',
        action='extend',
        default=[],
        metavar='ENDPOINT',
        help='wait for servers and robots whose zenoh_connect names this endpoint',
    )
    parser.add_argument(
        '--site', default='default', metavar='NAME', help='zenoh_site of the nodes (default)'
    )
    parser.add_argument(
        '--keys',
        default='',
        metavar='FOLDER',
        help='zenoh_keys of this machine, for tls/ and quic/',
    )
    parser.add_argument(
        '--client',
        default=CLIENT,
        metavar='NAME',
        help=f'name in the keys of its queries, which access control may restrict ({CLIENT})',
    )
    parser.add_argument(
        '--server',
        dest='servers',
        nargs='+',
        action='extend',
        default=[],
        metavar='NAME',
        help='full names of servers and routers, such as /policy_router; access control hides '
        'those that are not named',
    )


def link_settings(options: argparse.Namespace) -> ZenohSettings:
    """Return the settings of a command line, unchecked."""
    from lerobot_serve.zenoh.settings import ZenohSettings

    keys = Path(options.keys).expanduser() if options.keys else None
    return ZenohSettings(options.site, tuple(options.connect), tuple(options.listen), keys)


# of verbs that see what passes servers and routers, and send nothing


def add_observer_options(parser: argparse.ArgumentParser, does: str) -> None:
    """Add the endpoints to listen at; `does` is what the verb does with what it hears."""
    parser.add_argument(
        '--connect',
        metavar='ENDPOINT',
        nargs='+',
        action='extend',
        default=[],
        help=f'{does} requests and replies over Zenoh, too: endpoints of servers and routers, '
        'such as tcp/192.168.1.5:7447',
    )
    parser.add_argument(
        '--site', default=DEFAULT_SITE, help=f'the zenoh_site of the nodes ({DEFAULT_SITE})'
    )
    parser.add_argument(
        '--keys',
        metavar='FOLDER',
        type=Path,
        help='zenoh_keys: those of `lerobot-serve keys recorder`',
    )


def observer_settings(options: argparse.Namespace) -> ZenohSettings | None:
    """Return the settings of the link, None without an endpoint. Raises UserError."""
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.zenoh.settings import ZenohSettings

    if options.connect:
        if options.keys:
            check_recorder(options.keys)
        return ZenohSettings(options.site, tuple(options.connect), keys=options.keys)
    if options.keys or options.site != DEFAULT_SITE:
        raise ParameterError('--keys and --site are of --connect; give it endpoints')
    return None


def check_recorder(keys: Path) -> None:
    """Raise UserError for keys that hear no requests: access control refuses without a word."""
    from lerobot_serve.errors import UserError
    from lerobot_serve.zenoh.credentials import check_credentials

    name = check_credentials(keys, may_listen=False).common_name
    if not name.startswith('recorder.'):
        raise UserError(
            f'{keys} has the key {name}, which may not hear the requests and replies of robots; '
            'make one with `lerobot-serve keys recorder NAME`, and copy the folders that it names'
        )
