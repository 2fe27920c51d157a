# SPDX-License-Identifier: Apache-2.0
"""
What the verbs of an operator share: options, the question before traffic moves, output, exit
status and completion with live names. Imports ROS in functions only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import contextlib
from math import isfinite
import sys
from typing import Any, TYPE_CHECKING

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.tools.output.json_text import json_text
from lerobot_serve.tools.output.standard_output import end_output, flush_output
from lerobot_serve.tools.output.text import without_controls

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.fleet_state import RouterView
    from lerobot_serve.tools.operate.outcome import Result
    from lerobot_serve.tools.operate.rule import Rule

TIMEOUT_S, TIMEOUT_LIMIT_S = 5.0, 3600.0
COMPLETION_S = 3.0
EXIT_STATUSES = (
    '| exit status 0 done, or nothing to do; 1 refused, nothing was changed; 2 wrong command '
    'line; 3 sent and not confirmed; 4 partly done'
)


def add_options(
    parser: argparse.ArgumentParser, *, router: bool = True, changes: bool = True
) -> None:
    """Add the common options; `changes` for a verb that changes something."""
    if router:
        option = parser.add_argument(
            '--router', default='', metavar='NAME', help='router (the only one)'
        )
        set_completer(option, router_names)
    parser.add_argument(
        '--timeout-s',
        type=seconds_argument,
        default=TIMEOUT_S,
        metavar='S',
        help=f'time limit of each search, call and confirmation [s] ({TIMEOUT_S:g})',
    )
    if changes:
        parser.add_argument('--yes', action='store_true', help='do not ask')
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def add_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--reason', default='', metavar='TEXT', help='why, for the trace; your name is added'
    )


def seconds_argument(given: str) -> float:
    """Parse a duration. Raises ArgumentTypeError."""
    try:
        number = float(given)
    except ValueError:
        number = float('nan')
    if not (isfinite(number) and 0 < number <= TIMEOUT_LIMIT_S):
        raise argparse.ArgumentTypeError(f'must be in (0, {TIMEOUT_LIMIT_S:g}] s, got {given}')
    return number


def run(options: argparse.Namespace, operation: Callable[[FleetClient], int]) -> int:
    """Run an operation with a client; return its exit status. Raises UserError."""
    from lerobot_serve.tools.operate.discovery.known_nodes import known_nodes
    from lerobot_serve.tools.operate.fleet_client import FleetClient
    from lerobot_serve.tools.operate.outcome import EXIT_UNKNOWN, ResultUnknown

    with FleetClient(options.timeout_s, known=known_nodes()) as client:
        try:
            return operation(client)
        except ResultUnknown as unknown:
            text = without_controls(f'lerobot-serve {options.verb}: {unknown}')
            print(text, file=sys.stderr)
            return EXIT_UNKNOWN


def find_router(client: FleetClient, options: argparse.Namespace) -> RouterView:
    """Return the state of the router of --router, or of the only one. Raises UserError."""
    from lerobot_serve.tools.operate.names import resolve_router

    given: str = options.router
    found = client.find_routers(given)
    return client.router(resolve_router(given, found, client.known_routers()))


def confirmed(
    options: argparse.Namespace,
    client: FleetClient,
    before: RouterView,
    verb: str,
    rule_of: Callable[[RouterView], Rule],
) -> tuple[RouterView, Rule] | None:
    """
    Ask for what the verb would do by the rule of the state `before`. Return the state of after the
    question and its rule, which is the confirmed one; None when there is nothing to do, which is
    printed. The main thread. Raises UserError without a yes, or when the verb would do something
    else now.
    """
    from lerobot_serve.tools.operate.operations import checked
    from lerobot_serve.tools.operate.rule import changed_text

    now, rule = before, rule_of(before)
    if checked(rule) and confirm(options, before.name, rule.text, asks=rule.asks):
        # the question has no time limit, and a rollout goes on meanwhile
        shown, now = rule.text, client.last_router(before.name) or before
        rule = rule_of(now)
        if checked(rule) and (refusal := changed_text(shown, rule.text)):
            raise UserError(refusal)
    if checked(rule):
        return now, rule
    nothing_to_do(options, verb, before.name, rule.text)
    return None


def confirm(options: argparse.Namespace, node: str, text: str, *, asks: bool) -> bool:
    """
    Print what the verb will do, and ask once when it moves traffic; return whether it asked.
    Raises UserError without a yes, WrongCommandLine without --yes where no answer can be given.
    """
    print(without_controls(f'{node}: will {text}'), file=sys.stderr)
    if options.yes or not asks:
        return False
    if sys.stdin is None or not sys.stdin.isatty():
        raise WrongCommandLine(
            'this moves episodes or a robot, and there is no terminal to ask on: add --yes. '
            'Nothing was changed'
        )
    print('Continue? [y/N] ', end='', file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ('y', 'yes'):
        raise UserError('not confirmed; nothing was changed')
    return True


def print_result(options: argparse.Namespace, result: Result) -> int:
    """Print what was changed and by whom; return 0, also when it cannot be printed."""
    try:
        print_found(options, result.as_json(), result.as_text)
        flush_output()
    except OSError as error:
        # a script would take another status for a command that changed nothing
        end_output()
        text = f'done; the result cannot be printed: {error.strerror}'
        print(f'lerobot-serve {options.verb}: {text}', file=sys.stderr)
    return 0


def print_found(options: argparse.Namespace, found: Any, text: Callable[[], str]) -> None:
    """Print an object, as JSON with --json."""
    print(json_text(found, indent=2) if options.json else text())


def nothing_to_do(options: argparse.Namespace, verb: str, node: str, text: str) -> int:
    """Print that the verb has nothing to do; return 0."""
    from lerobot_serve.tools.operate.outcome import Result

    return print_result(options, Result(verb, node, f'nothing to do: {text}'))


# completion: names that are live now; a shell shows no error


def set_completer(action: argparse.Action, names: Callable[..., list[str]]) -> None:
    """Let a shell complete the value of an argument; argcomplete reads this attribute."""
    vars(action)['completer'] = names


def live_names(find: Callable[[FleetClient], list[str]]) -> list[str]:
    """Return the names that are found within COMPLETION_S; none on an error."""
    from lerobot_serve.tools.operate.discovery.known_nodes import known_nodes
    from lerobot_serve.tools.operate.fleet_client import FleetClient

    with (
        contextlib.suppress(Exception),
        FleetClient(COMPLETION_S, known=known_nodes()) as client,
    ):
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
