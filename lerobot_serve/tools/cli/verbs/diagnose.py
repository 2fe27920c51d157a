# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve diagnose`: explains a stall from traces of edge, router and server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Annotated

from lerobot_serve.tools.cli.operator_options import Fleet, found_traces, RouterName
from lerobot_serve.tools.cli.signature import Argument, number, verb_of
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import parse_time_of_day, TimeOfDay

HELP = 'explain from traces why a robot stalled: a timeline, causes and remedies'
EXAMPLE = (
    'example: lerobot-serve diagnose traces/ --client robot_217 --at 14:03  | exit status 0 when '
    'the stall is explained, lacks evidence or did not happen, 1 for unreadable files, 2 for a '
    'wrong command line, 4 when no record of that robot or that time exists'
)
AROUND_S, AROUND_LIMIT_S = 10.0, 3600.0


def time_argument(given: str) -> TimeOfDay:
    """Parse the time of day. Raises ArgumentTypeError."""
    try:
        return parse_time_of_day(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def diagnose(
    paths: Annotated[
        Sequence[str],
        Argument(
            'trace file of an edge, a router or a server, or a folder with traces (the '
            'trace_folder of the router)',
            'PATH',
        ),
    ] = (),
    *,
    client: Annotated[str, Argument('name of the robot', 'NAME')],
    at: Annotated[
        TimeOfDay | None,
        Argument(
            '14:03 (that minute), 14:03:20 or 2026-07-30T14:03:20, local, or with an offset like '
            '+02:00 or Z; by the clock of the robot; without it the longest stall is explained',
            'TIME',
            time_argument,
        ),
    ] = None,
    around: Annotated[
        float,
        Argument(
            'time examined before and after the stall [s]',
            'S',
            number('s', AROUND_LIMIT_S, includes_least=True),
        ),
    ] = AROUND_S,
    brief: Annotated[bool, Argument('omit the timeline')] = False,
    router: RouterName = '',
    fleet: Fleet,
) -> Report:
    """Explain the stall. Raises TraceError, OSError."""
    from lerobot_serve.tools.cli.progress import show_spinner
    from lerobot_serve.tools.diagnosis.diagnose import diagnose as diagnosed
    from lerobot_serve.tools.diagnosis.report import diagnosis_report

    paths = found_traces(paths, fleet, router, f'diagnose --client {client}')
    with show_spinner('reading traces'):
        found = diagnosed(paths, client, at=at, around_s=around)
    return diagnosis_report(found, shows_timeline=not brief)


add_arguments, main = verb_of(diagnose)
