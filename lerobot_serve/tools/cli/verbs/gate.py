# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve gate`: compares a new policy with its parent, before it drives a robot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.tools.cli.arguments import Parameters
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.output.report import Report

if TYPE_CHECKING:
    from lerobot_serve.tools.gate.figures import GateFigures
    from lerobot_serve.tools.replay.in_process_server import InProcessServer

HELP = 'compare a new policy with its parent on recorded episodes, before it drives a robot'
EXAMPLE = (
    'example: lerobot-serve gate bags/monday --candidate policies/v2 --parent policies/v1 '
    '--records gates  | exit status 0 when it passes, 1 for an unreadable recording or policy, 2 '
    'for a wrong command line, 3 when it is refused or held, 4 when there are too few episodes'
)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies, and how both are loaded."""

    candidate: Annotated[str, Argument('directory of the new policy', 'DIR')]
    parent: Annotated[
        str,
        Argument('directory of the policy that it is compared with (the recorded replies)', 'DIR'),
    ] = ''
    robot: Annotated[
        Path | None,
        Argument('robot file with the limits of the cage, where the recordings lack them', 'FILE'),
    ] = None
    kind: Annotated[str, Argument('kind of both policies (by their files)')] = ''
    device: Annotated[str, Argument('device of both policies')] = 'cpu'
    parameters: Parameters = ()

    def served(self, policy: str) -> InProcessServer:
        """Load a policy as a policy server does. Raises PolicyError, ParameterError."""
        from lerobot_serve.policies.registry import detect_kind
        from lerobot_serve.tools.cli.arguments import server_parameters
        from lerobot_serve.tools.replay.in_process_server import InProcessServer

        # a request that is measured again must not be answered from a cache
        given = [*self.parameters, 'embedding_cache_mb=0']
        kind = self.kind or detect_kind(policy)
        return InProcessServer(server_parameters(kind, policy, self.device, given))


def gate(
    paths: Annotated[
        list[Path],
        Argument(
            'bags, captures of a server, or server traces with trace_images: full', 'RECORDING'
        ),
    ],
    *,
    policies: Policies,
    records: Annotated[
        Path | None,
        Argument('write the record there, for a router with gate_folder', 'FOLDER'),
    ] = None,
    overrides: Annotated[
        Sequence[str],
        Argument('let a performance gate pass; needs --reason', 'GATE', flags=('--override',)),
    ] = (),
    reason: Annotated[str, Argument('why; your name is added', 'TEXT')] = '',
    limits: GateLimits,
) -> Report:
    """
    Replay and evaluate. Raises BagError, TraceError, ReplayError, PolicyError, ParameterError,
    UserError.
    """
    from datetime import datetime, UTC

    from lerobot_serve.router.canary.gate_record import write_record
    from lerobot_serve.tools.gate.report import gate_report, make_record
    from lerobot_serve.tools.gate.rules import evaluate, verdict
    from lerobot_serve.tools.operate.names import operator_name

    check_overrides(overrides, reason)
    figures = collect(paths, policies)
    gates = evaluate(figures, limits)
    record = make_record(
        figures,
        gates,
        verdict(gates, figures.episodes, limits, overrides),
        limits,
        overrides=dict.fromkeys(overrides, reason),
        by=operator_name(),
        made=datetime.now(UTC).isoformat(timespec='seconds'),
    )
    if records:
        try:
            path = write_record(records, record)
        except OSError as error:
            raise UserError(f'the record cannot be written: {error}') from error
        figures.notes.append(f'record: {path}')
    return gate_report(record, figures, gates)


def check_overrides(names: Sequence[str], reason: str) -> None:
    """Raise WrongCommandLine for an override that is not possible."""
    from lerobot_serve.tools.gate.rules import PERFORMANCE_GATES, SAFETY_GATES

    for name in names:
        if name in SAFETY_GATES:
            raise WrongCommandLine(
                f'{name} is a safety gate and cannot be overridden; correct the policy'
            )
        if name not in PERFORMANCE_GATES:
            raise WrongCommandLine(
                f'--override {name}: no such gate; the performance gates are '
                f'{", ".join(PERFORMANCE_GATES)}'
            )
    if names and not reason.strip():
        raise WrongCommandLine('--override needs --reason: it is kept in the record')


def collect(paths: Sequence[Path], policies: Policies) -> GateFigures:
    """Run both policies on the recordings."""
    from contextlib import closing, ExitStack
    from functools import partial

    from lerobot_serve.policies.runtime.memory import declared_bytes
    from lerobot_serve.tools.cli.progress import show_count
    from lerobot_serve.tools.gate.collecting import cage_of_robot, Collector, recorded_parent
    from lerobot_serve.tools.replay.sources import open_source

    total = sum(sum(open_source(path).policies().values()) for path in paths)
    with ExitStack() as stack:

        def served(policy: str) -> InProcessServer:
            return stack.enter_context(closing(policies.served(policy)))

        candidate = served(policies.candidate)
        parent = served(policies.parent) if policies.parent else None
        name = (
            parent.served.fingerprint
            if parent
            else recorded_parent(paths, candidate.served.fingerprint)
        )
        check_same_actions(candidate, parent)
        cage = cage_of_robot(policies.robot, candidate.served.action_names)
        figures = Collector(candidate, parent, name, cage).run(
            paths, partial(show_count, total=total, what='replaying')
        )
    figures.candidate_bytes = declared_bytes(Path(policies.candidate))
    figures.parent_bytes = declared_bytes(Path(policies.parent)) if policies.parent else 0
    return figures


def check_same_actions(candidate: InProcessServer, parent: InProcessServer | None) -> None:
    """Raise WrongCommandLine for policies with other actions, or in another order."""
    if parent and parent.served.action_names != candidate.served.action_names:
        raise WrongCommandLine(
            f'the candidate has the actions {list(candidate.served.action_names)}, its parent '
            f'{list(parent.served.action_names)}: they cannot replace each other'
        )


add_arguments, main = verb_of(gate)
