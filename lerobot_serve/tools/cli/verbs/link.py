# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve link`: shows who is on a Zenoh link, and what each key carries."""

from __future__ import annotations

import argparse
from math import isfinite

HELP = 'show servers, routers and robots on a Zenoh link, rates and round trips'
EXAMPLE = (
    'example: lerobot-serve link --connect tcp/192.168.1.10:7447 --seconds 5  | exit status 0 '
    'when a server responds, 1 when none does, with the reason'
)
CONNECT = 'tcp/127.0.0.1:7447'
CLIENT = 'lerobot-serve-link'
SECONDS, SECONDS_LIMIT = 3.0, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--connect',
        nargs='+',
        action='extend',
        default=[],
        metavar='ENDPOINT',
        help='of servers, routers or Zenoh routers; all that passes there is shown '
        f'({CONNECT} unless --listen is given)',
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
        '--seconds',
        type=seconds_argument,
        default=SECONDS,
        metavar='N',
        help=f'how long to watch [s] ({SECONDS:g})',
    )
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Return 0 when a server responds. Raises UserError when none does."""
    import json
    from pathlib import Path

    from lerobot_serve.errors import UserError
    from lerobot_serve.tools.link.report import as_json, as_text
    from lerobot_serve.tools.link.watch import LinkWatch
    from lerobot_serve.zenoh.settings import ZenohSettings

    connect = options.connect or ([] if options.listen else [CONNECT])
    keys = Path(options.keys).expanduser() if options.keys else None
    settings = ZenohSettings(options.site, tuple(connect), tuple(options.listen), keys)
    with LinkWatch(settings, options.client) as watch:
        survey = watch.survey(options.seconds)
    if options.json:
        print(json.dumps(as_json(survey), indent=2))
    elif survey.participants:
        print(as_text(survey))
    if survey.failure:
        raise UserError(survey.failure)
    return 0


def seconds_argument(given: str) -> float:
    """Parse a duration. Raises ArgumentTypeError."""
    try:
        number = float(given)
    except ValueError:
        number = float('nan')
    if not (isfinite(number) and 0 < number <= SECONDS_LIMIT):
        raise argparse.ArgumentTypeError(f'must be in (0, {SECONDS_LIMIT:g}] s, got {given}')
    return number
