# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve loop`: takes each new version of a learner through gate and canary, or back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.ros_home import ros_home
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.loop.settings import (
    GATE_RECORDINGS,
    LEAST_RECORDINGS,
    PERIOD_S,
    PLAN,
)

if TYPE_CHECKING:
    from lerobot_serve.tools.loop.settings import LoopSettings

HELP = 'take each new version of a learner through gate and canary to the robots, or back'
EXAMPLE = (
    'example: lerobot-serve loop up loop; lerobot-serve loop history --hours 12  | exit status 0 '
    'after Ctrl-C, 1 when it cannot start, 2 for a wrong command line'
)
FOLDER, STORE = 'lerobot_serve/loop', 'lerobot_serve/versions'
HOUR_S, HOURS, HOURS_LIMIT = 3600.0, 24.0, 87600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(dest='step', metavar='STEP', required=True)
    up = steps.add_parser('up', help='start a fleet file with a learner and a loop')
    up.add_argument(
        'fleet', metavar='FLEET', help='fleet file with `loop:`, or the name of a shipped one'
    )
    up.set_defaults(operation=start_fleet)
    _add_run(steps.add_parser('run', help='conduct the loop, beside a fleet that runs'))
    history = steps.add_parser('history', help='print what the loop did')
    _add_folder(history)
    history.add_argument(
        '--hours', type=float, default=HOURS, metavar='N', help=f'of the last hours ({HOURS:g})'
    )
    history.add_argument('--json', action='store_true', help='print JSON, a line for each event')
    history.set_defaults(operation=print_history)


def _add_folder(step: argparse.ArgumentParser) -> None:
    step.add_argument(
        '--folder', type=Path, metavar='FOLDER', help=f'folder of the journal ($ROS_HOME/{FOLDER})'
    )


def _add_run(step: argparse.ArgumentParser) -> None:
    _add_folder(step)
    step.add_argument(
        '--store', type=Path, metavar='FOLDER', help=f'store of the versions ($ROS_HOME/{STORE})'
    )
    for name, text in (
        ('gates', 'folder of the gate records: gate_folder of the router'),
        ('recordings', 'folder in which `lerobot-serve record` keeps bags'),
        ('champion', 'folder of the policy that slot a serves at first'),
    ):
        step.add_argument(f'--{name}', type=Path, required=True, metavar='FOLDER', help=text)
    step.add_argument('--plan', default=PLAN, help=f'steps of each rollout ({PLAN})')
    step.add_argument(
        '--gate-recordings',
        type=int,
        default=GATE_RECORDINGS,
        metavar='N',
        help=f'newest bags that a version is compared on ({GATE_RECORDINGS})',
    )
    step.add_argument(
        '--robot', type=Path, metavar='FILE', help='robot file, where the bags lack the limits'
    )
    step.add_argument(
        '--period-s',
        type=float,
        default=PERIOD_S,
        metavar='N',
        help=f'time between two looks [s] ({PERIOD_S:g})',
    )
    router = step.add_argument('--router', default='', metavar='NAME', help='the only one')
    operator_options.set_completer(router, operator_options.router_names)
    step.set_defaults(operation=conduct)


def main(options: argparse.Namespace) -> int:
    """Run the step; return its exit status. Raises UserError."""
    status: int = options.operation(options)
    return status


def start_fleet(options: argparse.Namespace) -> int:
    """Run a fleet with a loop until a signal. Raises UserError."""
    from lerobot_serve.tools.cli.verbs import up
    from lerobot_serve.tools.fleet.process import Stage

    plan, _, _ = up.planned(options.fleet)
    if not any(process.stage is Stage.LOOP for process in plan):
        raise UserError(
            f'{options.fleet} has no section `loop:`; add one, or start it with '
            f'`lerobot-serve up {options.fleet}`'
        )
    return up.run(plan)


def conduct(options: argparse.Namespace) -> int:
    """Conduct the loop until a signal. Raises UserError."""
    import signal
    import sys
    import threading

    from lerobot_serve.tools.loop.conductor import Conductor
    from lerobot_serve.tools.loop.journal import Journal
    from lerobot_serve.tools.loop.router_observer import RouterObserver
    from lerobot_serve.tools.loop.verb_process import run_verb, VerbResult

    settings = read_settings(options)
    stop = threading.Event()

    def verb(words: list[str], limit_s: float) -> VerbResult:
        return run_verb(words, limit_s, stop)

    def say(text: str) -> None:
        print(f'loop: {text}', file=sys.stderr, flush=True)

    with Journal(settings.folder) as journal, RouterObserver(settings.router) as observer:
        for number in SIGNALS:
            signal.signal(number, lambda *_: stop.set())
        # `up` starts its processes with these blocked; a verb inherits what this thread has
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        Conductor(settings, journal, observer.observe, verb, say).run(stop)
        if journal.lost:
            say(f'{journal.lost} events are not in the journal: the disk did not take them')
    return 0


def read_settings(options: argparse.Namespace) -> LoopSettings:
    """Return the settings of the command line. Raises UserError."""
    from lerobot_serve.tools.loop.settings import LoopSettings
    from lerobot_serve.tools.operate.rollout.rollouts import parsed_plan

    parsed_plan(options.plan)
    if options.gate_recordings < LEAST_RECORDINGS:
        raise WrongCommandLine(
            f'--gate-recordings must be {LEAST_RECORDINGS} or more, which a gate needs, got '
            f'{options.gate_recordings}'
        )
    if not 0.1 <= options.period_s <= HOUR_S:
        raise WrongCommandLine(f'--period-s must be 0.1 to {HOUR_S:g}, got {options.period_s:g}')
    if not options.champion.is_dir():
        raise UserError(f'--champion {options.champion} is no folder; give that of a policy')
    if options.robot and not options.robot.is_file():
        raise UserError(f'--robot {options.robot} is no file; give a robot file')
    return LoopSettings(
        folder=journal_folder(options),
        store=(options.store or ros_home() / STORE).absolute(),
        gates=options.gates.absolute(),
        recordings=options.recordings.absolute(),
        champion=options.champion.absolute(),
        plan=options.plan,
        gate_recordings=options.gate_recordings,
        robot=options.robot.absolute() if options.robot else None,
        router=options.router,
        period_s=options.period_s,
    )


def journal_folder(options: argparse.Namespace) -> Path:
    """Return the folder of the journal."""
    folder: Path = options.folder or ros_home() / FOLDER
    return folder.absolute()


def print_history(options: argparse.Namespace) -> int:
    """Print the events of the last hours. Raises UserError."""
    from dataclasses import asdict
    from datetime import timedelta
    import json

    from lerobot_serve.tools.loop import history
    from lerobot_serve.tools.loop.journal import read_journal, utc_now
    from lerobot_serve.tools.output.text import without_controls

    if not 0 < options.hours <= HOURS_LIMIT:
        raise WrongCommandLine(f'--hours must be above 0, at most {HOURS_LIMIT:g}')
    since = (utc_now() - timedelta(hours=options.hours)).isoformat(timespec='seconds')
    folder = journal_folder(options)
    entries = list(read_journal(folder))
    found = [entry for entry in entries if entry.at >= since]
    if options.json:
        for entry in found:
            print(json.dumps(asdict(entry)))
        return 0
    lines = [history.entry_line(each) for each in found]
    if not found:
        lines = [f'nothing in the last {options.hours:g} hours in {folder}']
    if entries:
        lines += ['', *history.summary_lines(history.summarize(entries, since))]
    print('\n'.join(map(without_controls, lines)))
    return 0
