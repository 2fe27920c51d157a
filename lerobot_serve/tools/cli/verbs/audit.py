# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve audit`: checks traces and bags against the safety invariants."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated

from lerobot_serve.tools.cli.arguments import TracePaths
from lerobot_serve.tools.cli.operator_options import Fleet, found_traces, RouterName
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'check traces and bags against the safety invariants'
EXAMPLE = (
    'example: lerobot-serve audit traces/  | exit status 0 when all judged checks hold, 1 for '
    'unreadable files, 2 for a wrong command line, 3 for a violation, 4 when nothing could be '
    'judged, 5 when all judged checks hold but a trace is incomplete'
)
SHOWN, SHOWN_LIMIT = 5, 10_000


def audit(
    paths: TracePaths = (),
    *,
    max_action_age: Annotated[
        float | None,
        Argument('max_action_age_s of the edges in bags, which do not record it [s]', 'S'),
    ] = None,
    robot: Annotated[
        Path | None, Argument('robot file with the limits of the robots in bags', 'FILE')
    ] = None,
    show: Annotated[
        int, Argument('violations shown for each check', bounds=(0, SHOWN_LIMIT))
    ] = SHOWN,
    router: RouterName = '',
    fleet: Fleet,
) -> Report:
    """Audit the given files. Raises TraceError, BagError, OSError, ParameterError."""
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.audit.engine import run_audit
    from lerobot_serve.tools.audit.report import audit_report
    from lerobot_serve.tools.bags.reader import split_bags_and_traces
    from lerobot_serve.tools.bags.trace_view import BagTrace
    from lerobot_serve.tools.cli.progress import show_reading

    if max_action_age is not None and not (isfinite(max_action_age) and max_action_age > 0):
        raise ParameterError(f'--max-action-age must be above 0, got {max_action_age:g}')
    paths = found_traces(paths, fleet, router, 'audit')
    bags, traces = split_bags_and_traces(paths)
    if not bags and (max_action_age is not None or robot):
        raise ParameterError('--max-action-age and --robot are for bags; a trace records both')
    limits = limits_of(robot) if robot else ''
    sources = [
        BagTrace(bag, max_action_age_s=max_action_age, limits=limits, limits_in=limits_in)
        for bag in bags
    ]
    with show_reading(paths) as on_bytes_read:
        found = run_audit(traces, show=show, sources=sources, on_bytes_read=on_bytes_read)
    return audit_report(found)


def limits_of(file: Path) -> str:
    """Return the limits of a robot file in the format of an edge with default parameters."""
    from lerobot_serve.edge.parameters import EdgeParameters
    from lerobot_serve.edge.robot.file import load
    from lerobot_serve.edge.session_request import encode_robot_limits

    return encode_robot_limits(EdgeParameters(), load(file)).decode()


def limits_in(text: str) -> str:
    """Return those of the text of a robot file in a bag. Raises RobotFileError."""
    from lerobot_serve.edge.parameters import EdgeParameters
    from lerobot_serve.edge.robot.file import parse
    from lerobot_serve.edge.robot.file_format import parse_received_yaml
    from lerobot_serve.edge.session_request import encode_robot_limits

    place = 'the robot file in the bag'
    robot = parse(parse_received_yaml(text, place), place)
    return encode_robot_limits(EdgeParameters(), robot).decode()


add_arguments, main = verb_of(audit)
