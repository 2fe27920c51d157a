# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve keys`: makes the keys of robots, routers and servers for the Zenoh link."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli.signature import print_report

if TYPE_CHECKING:
    from lerobot_serve.tools.keys.site import KeySite

HELP = 'make, list, rotate and revoke the keys of a site for the Zenoh link'
EXAMPLE = 'example: lerobot-serve keys init --site lab-3; lerobot-serve keys robot robot_1'
ROLES = {
    'robot': 'a robot: speaks for itself alone',
    'router': 'a router: speaks for its robots',
    'server': 'a policy server',
    'operator': 'an operator: reads status and presence',
    'recorder': 'a recorder or dashboard: hears requests, replies and session calls',
    'hub': 'a Zenoh router (zenohd) between them',
}
AUTHORITY_DAYS, KEY_DAYS, LIMIT_DAYS = 3650, 365, 36500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest='action', metavar='ACTION', required=True)
    init = _action(actions, 'init', 'make a site: a folder with a certificate authority')
    init.add_argument('--site', default='default', help='its zenoh_site (default)')
    _add_days(init, AUTHORITY_DAYS)
    for role, text in ROLES.items():
        made = _action(actions, role, f'make the key of {text}')
        made.add_argument(
            'names',
            metavar='NAME',
            nargs='+' if role == 'robot' else 1,
            help=_name_help(role),
        )
        _add_days(made, KEY_DAYS)
        if role in ('router', 'server', 'hub'):
            made.add_argument(
                '--host',
                dest='hosts',
                metavar='HOST',
                nargs='+',
                action='extend',
                default=[],
                help='DNS names and IP addresses that others connect to',
            )
        if role == 'server':
            made.add_argument(
                '--direct', action='store_true', help='robots may use it without a router'
            )
    rotate = _action(actions, 'rotate', 'make a new key for a name; the old one stays valid')
    _add_days(rotate, KEY_DAYS)
    for action in (rotate, _action(actions, 'revoke', 'take a key out of all access files')):
        action.add_argument('name', metavar='NAME', help='such as robot_1 or robot.robot_1')
    listed = _action(actions, 'list', 'print the keys with state and expiry')
    listed.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Run the action. Raises UserError."""
    from datetime import datetime, timezone

    from lerobot_serve.tools.keys.report import keys_report
    from lerobot_serve.tools.keys.site import make_site, opened_site

    if not 1 <= getattr(options, 'days', 1) <= LIMIT_DAYS:
        raise WrongCommandLine(f'--days must be in [1, {LIMIT_DAYS}], got {options.days}')
    if options.action == 'init':
        make_site(options.folder, options.site, options.days)
        print(
            f'{options.folder}: keys of the site {options.site}; keep this folder off robots and '
            'servers, and back it up'
        )
        return 0
    with opened_site(options.folder) as site:
        if options.action == 'list':
            now = datetime.now(timezone.utc)
            return print_report(keys_report(site.name, site.records, now), options)
        print(_run(site, options))
    return 0


def _run(site: KeySite, options: argparse.Namespace) -> str:
    """Return what to print. Raises UserError, OSError."""
    from lerobot_serve.tools.keys import report
    from lerobot_serve.tools.keys.access import KeyRole

    folder = options.folder
    if options.action == 'revoke':
        text = report.revoked_text(site.revoke(options.name))
        return '\n'.join(filter(None, (text, report.changed_text(folder, site.write_access()))))
    if options.action == 'rotate':
        made = [site.rotate(options.name, options.days)]
    else:
        made = site.add_all(
            KeyRole(options.action),
            options.names,
            options.days,
            hosts=tuple(getattr(options, 'hosts', ())),
            direct=getattr(options, 'direct', False),
        )
    own = {identity.folder for identity in made}
    changed = [name for name in site.write_access() if name not in own]
    texts = [report.key_text(folder, identity) for identity in made]
    return '\n'.join(filter(None, (*texts, report.changed_text(folder, changed))))


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f'{text[0].upper()}{text[1:]}.')
    parser.add_argument(
        '--folder', type=Path, default=Path('keys'), help='folder of the site (./keys)'
    )
    return parser


def _add_days(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument('--days', type=int, default=default, help=f'validity [days] ({default})')


def _name_help(role: str) -> str:
    if role in ('router', 'server'):
        return 'full name of its node, such as /slot_a/policy_server'
    return (
        'client_id of the robot; several make a key for each'
        if role == 'robot'
        else 'a name of its own'
    )
