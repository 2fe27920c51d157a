# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve gate`: compares a new policy with its parent, before it drives a robot."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli.signature import print_report

if TYPE_CHECKING:
    from lerobot_serve.router.canary.gate_record import GateRecord
    from lerobot_serve.tools.gate.figures import GateFigures
    from lerobot_serve.tools.gate.limits import GateLimits
    from lerobot_serve.tools.gate.rules import Gate
    from lerobot_serve.tools.replay.in_process_server import InProcessServer

HELP = 'compare a new policy with its parent on recorded episodes, before it drives a robot'
EXAMPLE = (
    'example: lerobot-serve gate bags/monday --candidate policies/v2 --parent policies/v1 '
    '--records gates  | exit status 0 when it passes, 1 for an unreadable recording or policy, 2 '
    'for a wrong command line, 3 when it is refused or held, 4 when there are too few episodes'
)
# option -> help; the rest is in GateLimits
LIMITS = {
    'minimum_episodes': 'distinct episodes that are needed',
    'cage_percent': 'share of chunks that the cage would change [%%], at most',
    'cage_ratio': 'or this many times the share of the parent',
    'velocity_distance': "distance of the velocities, in spreads of the parent's, at most",
    'margin': 'deficit of the success rate that is acceptable',
    'latency_ratio': 'p99 of the inference time, over that of the parent, at most',
    'memory_ratio': 'bytes of the files, over those of the parent, at most',
    'similarity': 'cosine of the motions of both policies, at least',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dataclasses import fields

    from lerobot_serve.tools.gate.limits import GateLimits

    parser.add_argument(
        'paths',
        metavar='RECORDING',
        type=Path,
        nargs='+',
        help='bags, captures of a server, or server traces with trace_images: full',
    )
    parser.add_argument(
        '--candidate', metavar='DIR', required=True, help='directory of the new policy'
    )
    parser.add_argument(
        '--parent',
        metavar='DIR',
        default='',
        help='directory of the policy that it is compared with (the recorded replies)',
    )
    parser.add_argument(
        '--robot',
        metavar='FILE',
        type=Path,
        help='robot file with the limits of the cage, where the recordings lack them',
    )
    parser.add_argument('--kind', default='', help='kind of both policies (by their files)')
    parser.add_argument('--device', default='cpu', help='device of both policies (cpu)')
    parser.add_argument(
        '--parameter',
        dest='parameters',
        metavar='NAME=VALUE',
        action='append',
        default=[],
        help='further parameter of the policy_server, for example default_task=fold',
    )
    parser.add_argument(
        '--records',
        metavar='FOLDER',
        type=Path,
        help='write the record there, for a router with gate_folder',
    )
    parser.add_argument(
        '--override',
        dest='overrides',
        metavar='GATE',
        action='append',
        default=[],
        help='let a performance gate pass; needs --reason',
    )
    parser.add_argument('--reason', default='', metavar='TEXT', help='why; your name is added')
    for entry in fields(GateLimits):
        parser.add_argument(
            f'--{entry.name.replace("_", "-")}',
            type=int if entry.name == 'minimum_episodes' else float,
            default=entry.default,
            metavar='N' if entry.name == 'minimum_episodes' else 'X',
            help=f'{LIMITS[entry.name]} ({entry.default:g})',
        )
    parser.add_argument('--json', action='store_true', help='print the record')


def main(options: argparse.Namespace) -> int:
    """Return the exit status of the verdict. Raises ParameterError, UserError, PolicyError."""
    from lerobot_serve.errors import UserError
    from lerobot_serve.router.canary.gate_record import write_record
    from lerobot_serve.tools.gate.report import gate_report

    figures, gates, record = run(options)
    if options.records:
        try:
            path = write_record(options.records, record)
        except OSError as error:
            raise UserError(f'the record cannot be written: {error}') from error
        figures.notes.append(f'record: {path}')
    return print_report(gate_report(record, figures, gates), options)


def run(options: argparse.Namespace) -> tuple[GateFigures, tuple[Gate, ...], GateRecord]:
    """
    Replay, evaluate, and return the record. Raises BagError, TraceError, ReplayError, PolicyError,
    ParameterError, WrongCommandLine.
    """
    from datetime import datetime, UTC

    from lerobot_serve.tools.gate.report import make_record
    from lerobot_serve.tools.gate.rules import evaluate, verdict
    from lerobot_serve.tools.operate.names import operator_name

    limits = limits_of(options)
    check_overrides(options)
    figures = collect(options)
    gates = evaluate(figures, limits)
    decided = verdict(gates, figures.episodes, limits, options.overrides)
    record = make_record(
        figures,
        gates,
        decided,
        limits,
        overrides=dict.fromkeys(options.overrides, options.reason),
        by=operator_name(),
        made=datetime.now(UTC).isoformat(timespec='seconds'),
    )
    return figures, gates, record


def limits_of(options: argparse.Namespace) -> GateLimits:
    """Return the limits of the options. Raises WrongCommandLine."""
    from lerobot_serve.errors import WrongCommandLine
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.gate.limits import GateLimits

    try:
        return GateLimits(**{name: getattr(options, name) for name in LIMITS})
    except ParameterError as error:
        raise WrongCommandLine(str(error)) from error


def check_overrides(options: argparse.Namespace) -> None:
    """Raise WrongCommandLine for an override that is not possible."""
    from lerobot_serve.errors import WrongCommandLine
    from lerobot_serve.tools.gate.rules import PERFORMANCE_GATES, SAFETY_GATES

    for name in options.overrides:
        if name in SAFETY_GATES:
            raise WrongCommandLine(
                f'{name} is a safety gate and cannot be overridden; correct the policy'
            )
        if name not in PERFORMANCE_GATES:
            raise WrongCommandLine(
                f'--override {name}: no such gate; the performance gates are '
                f'{", ".join(PERFORMANCE_GATES)}'
            )
    if options.overrides and not options.reason.strip():
        raise WrongCommandLine('--override needs --reason: it is kept in the record')


def collect(options: argparse.Namespace) -> GateFigures:
    """Run both policies on the recordings."""
    from contextlib import closing, ExitStack
    from functools import partial

    from lerobot_serve.policies.resources.footprint import declared_bytes
    from lerobot_serve.tools.cli.progress import show_count
    from lerobot_serve.tools.gate.collecting import cage_of_robot, Collector, recorded_parent
    from lerobot_serve.tools.replay.sources import open_source

    total = sum(sum(open_source(path).policies().values()) for path in options.paths)
    with ExitStack() as stack:

        def served(policy: str) -> InProcessServer:
            return stack.enter_context(closing(serve(options, policy)))

        candidate = served(options.candidate)
        parent = served(options.parent) if options.parent else None
        name = (
            parent.served.fingerprint
            if parent
            else recorded_parent(options.paths, candidate.served.fingerprint)
        )
        check_same_actions(candidate, parent)
        cage = cage_of_robot(options.robot, candidate.served.action_names)
        figures = Collector(candidate, parent, name, cage).run(
            options.paths, partial(show_count, total=total, what='replaying')
        )
    figures.candidate_bytes = declared_bytes(Path(options.candidate))
    figures.parent_bytes = declared_bytes(Path(options.parent)) if options.parent else 0
    return figures


def check_same_actions(candidate: InProcessServer, parent: InProcessServer | None) -> None:
    """Raise WrongCommandLine for policies with other actions, or in another order."""
    from lerobot_serve.errors import WrongCommandLine

    if parent and parent.served.action_names != candidate.served.action_names:
        raise WrongCommandLine(
            f'the candidate has the actions {list(candidate.served.action_names)}, its parent '
            f'{list(parent.served.action_names)}: they cannot replace each other'
        )


def serve(options: argparse.Namespace, policy: str) -> InProcessServer:
    """Load a policy as a policy server does. Raises PolicyError, ParameterError."""
    from lerobot_serve.policies.kind_detection import detect_kind
    from lerobot_serve.tools.cli.policy_options import server_parameters
    from lerobot_serve.tools.replay.in_process_server import (
        InProcessServer,
        with_placeholder_names,
    )

    parameters = server_parameters(
        options.kind or detect_kind(policy),
        policy,
        options.device,
        # a request that is measured again must not be answered from a cache
        [*options.parameters, 'embedding_cache_mb=0'],
    )
    return InProcessServer(with_placeholder_names(parameters))
