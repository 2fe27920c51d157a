# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve replay`: sends recorded observations to a policy and compares the chunks."""

from __future__ import annotations

import argparse
from functools import partial
import json
from pathlib import Path
from typing import Any

from lerobot_serve.parameters import (
    build_parameters,
    parameter_specs,
    ParameterError,
    ParameterSpec,
)
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.cli.progress import show_count
from lerobot_serve.tools.replay.compare import TOLERANCE
from lerobot_serve.tools.replay.engine import Replay, ReplayResult
from lerobot_serve.tools.replay.exit_status import exit_status, FAIL_ON
from lerobot_serve.tools.replay.in_process_server import InProcessServer
from lerobot_serve.tools.replay.placeholder_names import with_placeholder_names
from lerobot_serve.tools.replay.report import as_json, as_text
from lerobot_serve.tools.replay.sources import open_source, ReplayError
from lerobot_serve.trace.format.incident_file import IncidentError
from lerobot_serve.trace.format.schema import TraceError

EXAMPLE = (
    'example: lerobot-serve replay bags/monday --kind lerobot --policy policies/v2  | exit '
    'status 0 when all chunks pass --fail-on, 1 for what cannot be read or loaded, 2 for a wrong '
    'command line, 3 when a chunk fails, 4 when there is nothing to compare'
)
# more sessions than a recording has: none is refused
SESSIONS = 4096
WORDS = {'true': True, 'false': False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        help='directory of the policy (the reaching policy of config/policies)',
    )
    parser.add_argument('--kind', default='builtin', help='kind of policy (builtin)')
    parser.add_argument('--device', default='cpu', help='device of the policy (cpu)')
    parser.add_argument(
        '--tolerance',
        type=float,
        default=TOLERANCE,
        help=f'largest difference of two values, relative for values above 1 ({TOLERANCE:g})',
    )
    parser.add_argument(
        '--fail-on',
        choices=tuple(FAIL_ON),
        default='beyond',
        help='exit status 3 when a chunk is missing; missing or beyond the tolerance; missing or '
        'different at all; or never (beyond)',
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
    parser.add_argument('--json', action='store_true', help='print one object')


def main(options: argparse.Namespace) -> int:
    """Return the exit status of the replay. Raises ParameterError."""
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
    """Raises BagError, IncidentError, TraceError, ReplayError, PolicyError, ParameterError."""
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


def server_parameters(options: argparse.Namespace) -> ServerParameters:
    """Return the parameters of the policy_server. Raises ParameterError."""
    known = {spec.name: spec for spec in parameter_specs(ServerParameters)}
    values: dict[str, Any] = {
        'policy_kind': options.kind,
        'policy_path': options.policy,
        'device': options.device,
        'max_sessions': SESSIONS,
        'max_sessions_per_process': SESSIONS,
    }
    for given in options.parameters:
        name, equals, text = given.partition('=')
        if not equals or name not in known:
            raise ParameterError(
                f'--parameter must be NAME=VALUE of a policy_server, got {given!r}'
            )
        values[name] = value_of(known[name], text)
    return build_parameters(ServerParameters, values)


def value_of(spec: ParameterSpec, text: str) -> Any:
    """Return the value of a parameter given as text, or the text when it has no such value."""
    if spec.kind is tuple:
        return tuple(part.strip() for part in text.split(','))
    if spec.kind is bool:
        return WORDS.get(text, text)
    try:
        return spec.kind(text)
    except ValueError:
        return text
