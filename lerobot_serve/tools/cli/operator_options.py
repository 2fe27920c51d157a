# SPDX-License-Identifier: Apache-2.0
"""
What the verbs of an operator share: arguments, the question before traffic moves, exit statuses,
and completion with live names. Imports ROS in functions only; the main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass
from pathlib import Path
import sys
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.tools.cli.signature import Argument, number
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import without_controls

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.rule import Rule

TIMEOUT_LIMIT_S, COMPLETION_S = 3600.0, 3.0
EXIT_STATUSES = (
    '| exit status 0 done, or nothing to do; 1 refused, nothing was changed; 2 wrong command '
    'line; 3 sent and not confirmed; 4 partly done'
)

# completion: names that are live now; a shell shows no error


def live_names(find: Callable[[FleetClient], list[str]]) -> list[str]:
    """Return the names that are found within COMPLETION_S; none on an error."""
    with contextlib.suppress(Exception), Fleet(COMPLETION_S).client() as client:
        return find(client)
    return []


def router_names(**_: object) -> list[str]:
    return live_names(lambda client: client.find_routers())


def robot_names(**_: object) -> list[str]:
    from lerobot_serve.tools.operate.fleet_state import RobotView

    def find(client: FleetClient) -> list[str]:
        return [RobotView(node).name for node in client.find_robot_nodes(lambda _: None)]

    return live_names(find)


def policy_names(**_: object) -> list[str]:
    """Return the policies of the slots b of all routers."""

    def find(client: FleetClient) -> list[str]:
        found = (client.router(name).slot('b') for name in client.find_routers())
        return [slot.policy.partition('@')[0] for slot in found if slot and slot.policy]

    return live_names(find)


seconds = number('s', TIMEOUT_LIMIT_S)
Reason = Annotated[str, Argument('why, for the trace; your name is added', 'TEXT')]
RouterName = Annotated[str, Argument('router (the only one)', 'NAME', names=router_names)]
LoadTimeout = Annotated[
    float, Argument('time limit of a server to load the policy [s]', 'S', seconds)
]


@dataclass(frozen=True, slots=True)
class Fleet:
    """How a verb reaches the nodes of the fleet."""

    timeout_s: Annotated[
        float, Argument('time limit of each search, call and confirmation [s]', 'S', seconds)
    ] = 5.0

    @contextlib.contextmanager
    def client(self) -> Iterator[FleetClient]:
        """Give a client of the fleet. Raises UserError."""
        from lerobot_serve.tools.operate.discovery.known_nodes import known_nodes
        from lerobot_serve.tools.operate.fleet_client import FleetClient

        with FleetClient(self.timeout_s, known=known_nodes()) as client:
            yield client


@dataclass(frozen=True, slots=True)
class Operator(Fleet):
    """The options of a verb that changes something."""

    yes: Annotated[bool, Argument('do not ask')] = False

    def confirm(self, node: str, text: str, *, asks: bool) -> bool:
        """
        Print what the verb will do, and ask once when it moves traffic; return whether it asked.
        Raises UserError without a yes, WrongCommandLine without --yes where no answer can be
        given.
        """
        print(without_controls(f'{node}: will {text}'), file=sys.stderr)
        if self.yes or not asks:
            return False
        ask('Continue?', 'this moves episodes or a robot, and ')
        return True

    def on_router(
        self,
        router: str,
        verb: str,
        rule_of: Callable[[FleetClient, RouterView], Rule],
        act: Callable[[FleetClient, RouterView, Rule], Report],
    ) -> Report:
        """
        Ask for what a verb would do by its rule, and act in the state of after the question, whose
        rule is the confirmed one. Raises UserError without a yes, or when the verb would do
        something else now.
        """
        from lerobot_serve.tools.operate.operations import checked
        from lerobot_serve.tools.operate.rule import changed_text

        with self.client() as client:
            now = before = find_router(client, router)
            rule = rule_of(client, before)
            if checked(rule) and self.confirm(before.name, rule.text, asks=rule.asks):
                # the question has no time limit, and a rollout continues meanwhile
                shown, now = rule.text, client.last_router(before.name) or before
                rule = rule_of(client, now)
                if checked(rule) and (refusal := changed_text(shown, rule.text)):
                    raise UserError(refusal)
            if not checked(rule):
                return nothing_to_do(verb, before.name, rule.text)
            return act(client, now, rule)


def ask(question: str, why: str = '') -> None:
    """Ask once. Raises UserError without a yes, WrongCommandLine without a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise WrongCommandLine(
            f'{why}there is no terminal to ask on: add --yes. Nothing was changed'
        )
    print(f'{question} [y/N] ', end='', file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ('y', 'yes'):
        raise UserError('not confirmed; nothing was changed')


def nothing_to_do(verb: str, node: str, text: str) -> Report:
    """Return the report of a verb that has nothing to do."""
    from lerobot_serve.tools.operate.outcome import Result

    return Result(verb, node, f'nothing to do: {text}').report()


def find_router(client: FleetClient, given: str) -> RouterView:
    """Return the state of the router of --router, or of the only one. Raises UserError."""
    from lerobot_serve.tools.operate.names import resolve_router

    found = client.find_routers(given)
    return client.router(resolve_router(given, found, client.known_routers()))


def found_traces(given: Sequence[str], fleet: Fleet, router: str, verb: str) -> Sequence[str]:
    """
    Return the given traces; without any the trace_folder of the router. Raises UserError when it
    has none, or not on this machine.
    """
    if given:
        return given
    with fleet.client() as client:
        name = find_router(client, router).name
        folder: str = client.get_parameters(name, ['trace_folder'])['trace_folder']
    if not folder:
        raise UserError(
            f'{name} has no trace_folder, so what it did is not recorded; set trace_folder. '
            '`lerobot-serve rollout status` prints the present state'
        )
    if not Path(folder).is_dir():
        raise UserError(
            f'the trace_folder of the router ({folder}) is not on this machine; run this '
            f'there, or give a copy: lerobot-serve {verb} FOLDER'
        )
    return [folder]
