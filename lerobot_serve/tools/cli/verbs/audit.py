# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve audit`: checks traces and bags against the safety invariants."""

from __future__ import annotations

import argparse
import json
from math import isfinite
from pathlib import Path

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.wiring import encode_robot_limits, load_robot
from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.audit.command_bounds import CommandBounds, read_bounds
from lerobot_serve.tools.audit.engine import AuditResult, CheckStatus, run_audit, SHOWN_DEFAULT
from lerobot_serve.tools.audit.report import as_json, as_text
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.bags.reader import split_bags_and_traces
from lerobot_serve.tools.bags.trace_view import BagTrace
from lerobot_serve.tools.cli.progress import show_reading
from lerobot_serve.trace.format.schema import TraceError

EXAMPLE = (
    'example: lerobot-serve audit traces/  | exit status 0 when all judged checks hold, 1 for '
    'files that cannot be read, 2 for a wrong command line, 3 for a violation, 4 when nothing '
    'could be judged, 5 when all judged checks hold but a trace is incomplete'
)
STATUS = {
    CheckStatus.HOLDS: 0,
    CheckStatus.HOLDS_AS_RECORDED: 0,
    CheckStatus.VIOLATED: 3,
    CheckStatus.NOT_JUDGED: 4,
    CheckStatus.INCOMPLETE: 5,
}
SHOWN_LIMIT = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        help=f'violations shown of each check ({SHOWN_DEFAULT})',
    )
    parser.add_argument('--json', action='store_true', help='print one object')


def main(options: argparse.Namespace) -> int:
    """Return one of STATUS. Raises ParameterError."""
    if not 0 <= options.show <= SHOWN_LIMIT:
        raise ParameterError(f'--show must be in [0, {SHOWN_LIMIT}], got {options.show}')
    try:
        found = judge(options)
    except (TraceError, BagError, OSError) as error:
        raise ParameterError(str(error)) from error
    print(json.dumps(as_json(found), indent=2) if options.json else as_text(found))
    return STATUS[found.outcome]


def judge(options: argparse.Namespace) -> AuditResult:
    """Raises TraceError, BagError, OSError, ParameterError."""
    age_s = options.max_action_age
    if age_s is not None and not (isfinite(age_s) and age_s > 0):
        raise ParameterError(f'--max-action-age must be above 0, got {age_s:g}')
    bags, traces = split_bags_and_traces(options.paths)
    if not bags and (age_s is not None or options.robot):
        raise ParameterError('--max-action-age and --robot are for bags; a trace records both')
    bounds = bounds_of(options.robot) if options.robot else None
    sources = [BagTrace(bag, max_action_age_s=age_s, bounds=bounds) for bag in bags]
    with show_reading(options.paths):
        return run_audit(traces, show=options.show, sources=sources)


def bounds_of(file: Path) -> CommandBounds:
    """Return the limits of a robot file, as an edge with default parameters applies them."""
    return read_bounds(encode_robot_limits(EdgeParameters(), load_robot(file)).decode())
