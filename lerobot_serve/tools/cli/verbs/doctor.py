# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve doctor`: checks machine, policy, robot file, ROS graph and Zenoh link."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
from math import isfinite
import os
import sys
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli.link_options import add_link_options, link_settings

if TYPE_CHECKING:
    from lerobot_serve.tools.doctor.examination import ExaminationRequest

HELP = 'check machine, policy, robot file, ROS graph and Zenoh link; print remedies'
EXAMPLE = (
    'example: lerobot-serve doctor /models/act --robot my_robot.yaml --parameter trained_fps=30  '
    '| exit status 0 without a failure (warnings allowed), 1 with one, 2 for a wrong command '
    'line'
)
WAIT_S, WAIT_LIMIT_S = 2.0, 60.0
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'policy', metavar='POLICY_DIR', nargs='?', default='', help='directory of a policy'
    )
    parser.add_argument('--robot', metavar='FILE', help='robot file of the edge (robot_file)')
    parser.add_argument(
        '--kind',
        default='',
        help='kind of policy: builtin, exported, lerobot or one of another package (detected)',
    )
    parser.add_argument('--device', default='cpu', help='device of the policy (cpu)')
    parser.add_argument(
        '--parameter',
        dest='parameters',
        metavar='NAME=VALUE',
        action='append',
        default=[],
        help='further parameter of the policy_server, for example trained_fps=30',
    )
    parser.add_argument(
        '--namespace',
        type=namespace_argument,
        default='/',
        metavar='NAME',
        help='namespace of the edge_controller, for relative topics (/)',
    )
    parser.add_argument(
        '--wait-s',
        type=seconds_argument,
        default=WAIT_S,
        metavar='S',
        help=f'time limit for topics and nodes, and time to watch the link [s] ({WAIT_S:g})',
    )
    add_link_options(parser, 'check a link over Zenoh: endpoints of servers and routers')
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Return 0, or 1 when a check fails. Raises ParameterError for a wrong --parameter."""
    import json

    with stdout_to_stderr():
        from lerobot_serve.tools.doctor.examination import run_checks
        from lerobot_serve.tools.doctor.finding import FindingLevel, worst_level
        from lerobot_serve.tools.doctor.report import as_json, as_text

        groups = run_checks(examination_request(options))
    if options.json:
        print(json.dumps(as_json(groups), indent=2))
    else:
        print(as_text(groups, coloured=sys.stdout.isatty()))
    return 1 if worst_level(groups) is FindingLevel.FAILURE else 0


def examination_request(options: argparse.Namespace) -> ExaminationRequest:
    """Return the request of a command line. Raises ParameterError."""
    from lerobot_serve.tools.cli.policy_options import server_parameters
    from lerobot_serve.tools.doctor.examination import (
        ExaminationRequest,
        find_folder,
        find_kind,
    )

    kind: str = options.kind
    folder, unknown = find_folder(options.policy, kind) if options.policy else ('', ())
    if folder and not kind:
        kind, unknown = find_kind(folder)
    # reject a wrong --parameter before the slow checks
    given = {**vars(options), 'kind': kind, 'policy': folder}
    parameters = server_parameters(argparse.Namespace(**given))
    is_requested = bool(options.policy or options.kind)
    return ExaminationRequest(
        parameters=parameters if is_requested else None,
        unknown=unknown,
        robot_file=options.robot or '',
        namespace=options.namespace,
        wait_s=options.wait_s,
        link=link_settings(options),
        link_client=options.client,
        link_servers=tuple(options.servers),
    )


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of middleware and libraries to standard error."""
    sys.stdout.flush()
    kept = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, STANDARD_OUTPUT)
        os.close(kept)


def namespace_argument(given: str) -> str:
    """Check a namespace. Raises ArgumentTypeError."""
    from lerobot_serve.contract.names import is_topic

    name = '/' + given.strip('/')
    if name != '/' and not is_topic(name):
        text = f'must be like /robot_1, of letters, digits and single _, got {given!r}'
        raise argparse.ArgumentTypeError(text)
    return name


def seconds_argument(given: str) -> float:
    """Parse a duration. Raises ArgumentTypeError."""
    try:
        number = float(given)
    except ValueError:
        number = float('nan')
    if not (isfinite(number) and 0 < number <= WAIT_LIMIT_S):
        raise argparse.ArgumentTypeError(f'must be in (0, {WAIT_LIMIT_S:g}] s, got {given}')
    return number
