# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve link`: shows who is on a Zenoh link, and what each key carries."""

from __future__ import annotations

import argparse
from math import isfinite

from lerobot_serve.tools.cli.link_options import add_link_options, link_settings

HELP = 'show servers, routers and robots on a Zenoh link, rates and round trips'
EXAMPLE = (
    'example: lerobot-serve link --connect tcp/192.168.1.10:7447 --seconds 5  | exit status 0 '
    'when a server responds, 1 when none does, with the reason'
)
CONNECT = 'tcp/127.0.0.1:7447'
SECONDS, SECONDS_LIMIT = 3.0, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_link_options(
        parser,
        'of servers, routers or Zenoh routers; all that passes there is shown '
        f'({CONNECT} unless --listen is given)',
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

    from lerobot_serve.errors import UserError
    from lerobot_serve.tools.link.report import as_json, as_text
    from lerobot_serve.tools.link.watch import LinkWatch

    if not (options.connect or options.listen):
        options.connect = [CONNECT]
    with LinkWatch(link_settings(options), options.client, tuple(options.servers)) as watch:
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
