# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve rollout`: starts, watches, steers and finishes the rollout of a policy."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.rollout import loading, reading, steering

HELP = 'start, watch, steer and finish the rollout of a policy'
EXAMPLE = (
    'example: lerobot-serve rollout start v2 --plan 25,50,100; lerobot-serve rollout abort --now '
    f'--yes  {operator_options.EXIT_STATUSES}'
)
PLAN, LOAD_TIMEOUT_S = '25,50,100', 300.0
HOURS_LIMIT = 87600.0
STEERING = {
    'pause': 'keep the share; guards still roll back',
    'resume': 'continue a paused rollout; after a rollback lift the verdict and start again',
    'promote': 'to the next step, or to 100 %%, without waiting for the comparison',
    'abort': 'roll back: all new episodes to slot a, the candidate is barred',
    'undo': 'end a pause, or lift the verdict of a rollback',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = parser.add_subparsers(dest='step', metavar='STEP', required=True)
    _add_shadow(listed.add_parser('shadow', help='load a policy into the shadow'))
    _add_start(listed.add_parser('start', help='give a policy episodes, step by step'))
    _add_reading(listed)
    for name, text in STEERING.items():
        step = listed.add_parser(name, help=text, description=text)
        if name == 'abort':
            step.add_argument(
                '--now',
                action='store_true',
                help='running episodes leave with their next request instead of at their end',
            )
        _add_changing(step, steering.steer)
    _add_changing(
        listed.add_parser('stop', help='remove the plan without a verdict'), steering.stop
    )
    step = listed.add_parser('finish', help='load the promoted policy into slot a, as champion')
    _add_load_timeout(step)
    _add_changing(step, loading.finish)
    _add_history(listed.add_parser('history', help='print what the fleet did, from the traces'))


def _add_changing(
    step: argparse.ArgumentParser, operation: Callable[[argparse.Namespace], int]
) -> None:
    operator_options.add_reason(step)
    operator_options.add_options(step)
    step.set_defaults(operation=operation)


def _add_reading(listed: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, text, operation in (
        ('status', 'print plan, step, evidence and guards', reading.print_status),
        ('watch', 'show the status live, or a line for each change', reading.watch),
    ):
        step = listed.add_parser(name, help=text)
        operator_options.add_options(step, changes=False)
        step.set_defaults(operation=operation)
    step.add_argument(
        '--seconds',
        type=operator_options.seconds_argument,
        metavar='N',
        help='how long to watch [s] (until Ctrl-C)',
    )


def _add_shadow(step: argparse.ArgumentParser) -> None:
    step.add_argument(
        'what',
        metavar='DIRECTORY|stop|status',
        nargs='?',
        default=loading.SHADOW_STATUS,
        help='directory of a policy, with a /, that the shadow loads; stop unloads it; status '
        'prints what it has shown (status)',
    )
    _add_load_timeout(step)
    _add_changing(step, loading.shadow)


def _add_start(step: argparse.ArgumentParser) -> None:
    policy = step.add_argument(
        'policy',
        metavar='POLICY',
        nargs='?',
        default='',
        help='name or hash of the policy of slot b, as a check; or a directory, with a /, that '
        'the servers of slot b load (the policy of slot b)',
    )
    operator_options.set_completer(policy, operator_options.policy_names)
    step.add_argument(
        '--plan',
        default=PLAN,
        metavar='STEPS',
        help=f'SHARE, SHARE:EPISODES or SHARE:EPISODES:SECONDS, with commas ({PLAN})',
    )
    step.add_argument(
        '--skip-shadow',
        action='store_true',
        help='begin without the shadow requirements of the router; recorded with your name and '
        '--reason',
    )
    _add_load_timeout(step)
    _add_changing(step, loading.start)


def _add_load_timeout(step: argparse.ArgumentParser) -> None:
    step.add_argument(
        '--load-timeout-s',
        type=operator_options.seconds_argument,
        default=LOAD_TIMEOUT_S,
        metavar='S',
        help=f'time limit of a server to load the policy [s] ({LOAD_TIMEOUT_S:g})',
    )


def _add_history(step: argparse.ArgumentParser) -> None:
    step.add_argument(
        'traces',
        metavar='FOLDER',
        nargs='*',
        help='traces of routers, servers and robots (the trace_folder of the router)',
    )
    limits = step.add_mutually_exclusive_group()
    limits.add_argument(
        '--hours', type=hours_argument, metavar='N', help='only the last N hours (all)'
    )
    limits.add_argument(
        '--since',
        type=since_argument,
        metavar='TIME',
        help='only since a local time: 18:30 (the last one), 2026-11-22 or 2026-11-22T18:30',
    )
    operator_options.add_options(step, changes=False)
    step.set_defaults(operation=reading.print_history)


def main(options: argparse.Namespace) -> int:
    """Return the exit status of the step. Raises UserError."""
    operation: Callable[[argparse.Namespace], int] = options.operation
    return operation(options)


def hours_argument(given: str) -> float:
    """Parse a number of hours. Raises ArgumentTypeError."""
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not 0 < number <= HOURS_LIMIT:
        raise argparse.ArgumentTypeError(f'must be in (0, {HOURS_LIMIT:g}] h, got {given}')
    return number


def since_argument(given: str) -> float:
    """Parse a local time, or one with an offset, into seconds. Raises ArgumentTypeError."""
    import time

    from lerobot_serve.tools.output.local_time import DAY_S, parse_time_of_day, resolve_within

    now_s = time.time()
    try:
        return resolve_within(parse_time_of_day(given), now_s - DAY_S, now_s)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'must be a local time such as 18:30, 2026-11-22 or 2026-11-22T18:30, got {given}'
        ) from None
