# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve diagnose`: explains a stall from traces of edge, router and server."""

from __future__ import annotations

import argparse
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.tools.output.local_time import TimeOfDay

HELP = 'explain from traces why a robot stalled: a timeline, causes and remedies'
EXAMPLE = (
    'example: lerobot-serve diagnose traces/ --client robot_217 --at 14:03  | exit status 0 when '
    'the stall is explained, lacks evidence or did not happen, 1 for unreadable files, 2 for a '
    'wrong command line, 4 when no record of that robot or that time exists'
)
STATUS = {'unknown_client': 4, 'not_covered': 4}
AROUND_LIMIT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.tools.diagnosis.diagnose import AROUND_S

    parser.add_argument(
        'paths',
        metavar='PATH',
        nargs='+',
        help='trace file of an edge, a router or a server, or a folder with traces',
    )
    parser.add_argument('--client', required=True, metavar='NAME', help='name of the robot')
    parser.add_argument(
        '--at',
        type=time_argument,
        metavar='TIME',
        help='14:03 (that minute), 14:03:20 or 2026-07-30T14:03:20, local, or with an offset '
        'like +02:00 or Z; by the clock of the robot; without it the longest stall is explained',
    )
    parser.add_argument(
        '--around',
        type=seconds_argument,
        default=AROUND_S,
        metavar='S',
        help=f'time examined before and after the stall [s] ({AROUND_S:g})',
    )
    parser.add_argument('--brief', action='store_true', help='omit the timeline')
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Return 0, or 4 without a record of that robot or time. Raises ParameterError."""
    import json

    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.cli.progress import show_spinner
    from lerobot_serve.tools.diagnosis.diagnose import diagnose
    from lerobot_serve.tools.diagnosis.report import as_json, as_text, outcome
    from lerobot_serve.trace.format.schema import TraceError

    try:
        with show_spinner('reading traces'):
            diagnosis = diagnose(
                options.paths, options.client, at=options.at, around_s=options.around
            )
    except (TraceError, OSError) as error:
        raise ParameterError(str(error)) from error
    if options.json:
        print(json.dumps(as_json(diagnosis), indent=2))
    else:
        print(as_text(diagnosis, show_line=not options.brief))
    return STATUS.get(outcome(diagnosis), 0)


def time_argument(given: str) -> TimeOfDay:
    """Parse the time of day. Raises ArgumentTypeError."""
    from lerobot_serve.tools.output.local_time import parse_time_of_day

    try:
        return parse_time_of_day(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds_argument(given: str) -> float:
    """Parse a duration. Raises ArgumentTypeError."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = float('nan')
    if not (isfinite(seconds) and 0 <= seconds <= AROUND_LIMIT_S):
        raise argparse.ArgumentTypeError(f'must be in [0, {AROUND_LIMIT_S:g}] s, got {given}')
    return seconds
