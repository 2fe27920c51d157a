# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve audit`: checks traces and bags against the safety invariants."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.tools.audit.engine import AuditResult

HELP = 'check traces and bags against the safety invariants'
EXAMPLE = (
    'example: lerobot-serve audit traces/  | exit status 0 when all judged checks hold, 1 for '
    'unreadable files, 2 for a wrong command line, 3 for a violation, 4 when nothing could be '
    'judged, 5 when all judged checks hold but a trace is incomplete'
)
# outcome -> exit status
STATUS = {'holds': 0, 'holds_as_recorded': 0, 'violated': 3, 'not_judged': 4, 'incomplete': 5}
SHOWN_LIMIT = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.tools.audit.engine import SHOWN_DEFAULT

    parser.add_argument(
        'paths',
        metavar='PATH',
        nargs='+',
        help='trace file of an edge, a router or a server, a folder with traces, or a bag',
    )
    parser.add_argument(
        '--max-action-age',
        type=float,
        metavar='S',
        help='max_action_age_s of the edges in bags, which do not record it [s]',
    )
    parser.add_argument(
        '--robot',
        type=Path,
        metavar='FILE',
        help='robot file with the limits of the robots in bags',
    )
    parser.add_argument(
        '--show',
        type=int,
        default=SHOWN_DEFAULT,
        help=f'violations shown for each check ({SHOWN_DEFAULT})',
    )
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Return one of STATUS. Raises ParameterError."""
    import json

    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.audit.report import as_json, as_text
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.trace.format.schema import TraceError

    if not 0 <= options.show <= SHOWN_LIMIT:
        raise ParameterError(f'--show must be in [0, {SHOWN_LIMIT}], got {options.show}')
    try:
        found = judge(options)
    except (TraceError, BagError, OSError) as error:
        raise ParameterError(str(error)) from error
    print(json.dumps(as_json(found), indent=2) if options.json else as_text(found))
    return STATUS[found.outcome.value]


def judge(options: argparse.Namespace) -> AuditResult:
    """Audit the given files. Raises TraceError, BagError, OSError, ParameterError."""
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.audit.engine import run_audit
    from lerobot_serve.tools.bags.reader import split_bags_and_traces
    from lerobot_serve.tools.bags.trace_view import BagTrace
    from lerobot_serve.tools.cli.progress import show_reading

    age_s = options.max_action_age
    if age_s is not None and not (isfinite(age_s) and age_s > 0):
        raise ParameterError(f'--max-action-age must be above 0, got {age_s:g}')
    bags, traces = split_bags_and_traces(options.paths)
    if not bags and (age_s is not None or options.robot):
        raise ParameterError('--max-action-age and --robot are for bags; a trace records both')
    limits = limits_of(options.robot) if options.robot else ''
    sources = [BagTrace(bag, max_action_age_s=age_s, limits=limits) for bag in bags]
    with show_reading(options.paths) as on_bytes_read:
        return run_audit(traces, show=options.show, sources=sources, on_bytes_read=on_bytes_read)


def limits_of(file: Path) -> str:
    """Return the limits of a robot file in the format of an edge with default parameters."""
    from lerobot_serve.edge.parameters import EdgeParameters
    from lerobot_serve.edge.session_request import encode_robot_limits
    from lerobot_serve.edge.wiring import load_robot

    return encode_robot_limits(EdgeParameters(), load_robot(file)).decode()
