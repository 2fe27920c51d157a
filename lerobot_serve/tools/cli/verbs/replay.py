# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve replay`: sends recorded observations to a policy and compares the chunks."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.tools.replay.engine import ReplayResult

HELP = 'send recorded observations to a policy and compare the chunks'
EXAMPLE = (
    'example: lerobot-serve replay bags/monday --kind lerobot --policy policies/v2  | exit '
    'status 0 when all chunks pass --fail-on, 1 for an unreadable recording or policy, 2 for a '
    'wrong command line, 3 when a chunk fails, 4 when there is nothing to compare'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.tools.replay.compare import TOLERANCE
    from lerobot_serve.tools.replay.report import FAIL_ON

    parser.add_argument(
        'path',
        metavar='RECORDING',
        type=Path,
        help='a bag, a capture of a server, or a server trace with trace_images: full',
    )
    parser.add_argument(
        '--policy',
        metavar='DIR',
        default='',
        help='directory of the policy (config/policies/reach)',
    )
    parser.add_argument('--kind', default='builtin', help='kind of policy (builtin)')
    parser.add_argument('--device', default='cpu', help='device of the policy (cpu)')
    parser.add_argument(
        '--tolerance',
        type=float,
        default=TOLERANCE,
        help=f'tolerated difference of two values, relative for values above 1 ({TOLERANCE:g})',
    )
    parser.add_argument(
        '--fail-on',
        choices=tuple(FAIL_ON),
        default='beyond',
        help='exit status 3 when a chunk is missing; missing or beyond the tolerance; missing or '
        'not identical; or never (beyond)',
    )
    parser.add_argument(
        '--parameter',
        dest='parameters',
        metavar='NAME=VALUE',
        action='append',
        default=[],
        help='further parameter of the policy_server, for example default_task=fold',
    )
    parser.add_argument(
        '--robot-type',
        default='',
        help='robot_type of the sessions, if the recording lacks it',
    )
    parser.add_argument(
        '--execution-horizon',
        type=int,
        default=0,
        help='execution_horizon of the edges, if the recording lacks it',
    )
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Return the exit status of the replay. Raises ParameterError."""
    import json

    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.policies.base import PolicyError
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.replay.report import as_json, as_text, exit_status
    from lerobot_serve.tools.replay.sources import ReplayError
    from lerobot_serve.trace.format.incident_file import IncidentError
    from lerobot_serve.trace.format.schema import TraceError

    if not options.tolerance >= 0:
        raise ParameterError(f'--tolerance must be 0 or above, got {options.tolerance:g}')
    if not 0 <= options.execution_horizon < 1 << 32:
        raise ParameterError(
            f'--execution-horizon must be 0 or above, got {options.execution_horizon}'
        )
    try:
        result = replay(options)
    except (BagError, IncidentError, TraceError, ReplayError, PolicyError) as error:
        raise ParameterError(str(error)) from error
    print(json.dumps(as_json(result), indent=2) if options.json else as_text(result))
    return exit_status(result, options.fail_on)


def replay(options: argparse.Namespace) -> ReplayResult:
    """
    Replay the recording. Raises BagError, IncidentError, TraceError, ReplayError, PolicyError,
    ParameterError.
    """
    from lerobot_serve.ros.package_share import shared_file
    from lerobot_serve.tools.cli.policy_options import server_parameters
    from lerobot_serve.tools.cli.progress import show_count
    from lerobot_serve.tools.replay.engine import Replay
    from lerobot_serve.tools.replay.in_process_server import (
        InProcessServer,
        with_placeholder_names,
    )
    from lerobot_serve.tools.replay.sources import open_source

    source = open_source(options.path)
    replayer = InProcessServer(
        with_placeholder_names(server_parameters(options)),
        str(shared_file('config/policies/reach')),
        robot_type=options.robot_type,
        execution_horizon=options.execution_horizon,
    )
    count = sum(source.policies().values())
    try:
        return Replay(source, replayer, options.tolerance).run(
            partial(show_count, total=count, what='replaying')
        )
    finally:
        replayer.close()
