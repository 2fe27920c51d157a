# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve loop`: takes each new version of a learner through gate and canary, or back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.ros_home import ros_home
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.signature import Argument, steps_of
from lerobot_serve.tools.loop.settings import (
    GATE_RECORDINGS,
    LEAST_RECORDINGS,
    PERIOD_S,
    PLAN,
)

HELP = 'take each new version of a learner through gate and canary to the robots, or back'
EXAMPLE = (
    'example: lerobot-serve loop up loop; lerobot-serve loop history --hours 12  | exit status 0 '
    'after Ctrl-C, 1 when it cannot start, 2 for a wrong command line'
)
FOLDER, STORE = 'lerobot_serve/loop', 'lerobot_serve/versions'
HOUR_S, HOURS_LIMIT = 3600.0, 87600.0


Folder = Annotated[Path | None, Argument(f'folder of the journal ($ROS_HOME/{FOLDER})', 'FOLDER')]


def start_fleet(
    fleet: Annotated[
        str, Argument('fleet file with `loop:`, or the name of a shipped one', 'FLEET')
    ],
) -> int:
    """Start a fleet file with a learner and a loop. Raises UserError."""
    from lerobot_serve.tools.cli.verbs import up
    from lerobot_serve.tools.fleet.process import Stage

    plan, _, _ = up.planned(fleet)
    if not any(process.stage is Stage.LOOP for process in plan):
        raise UserError(
            f'{fleet} has no section `loop:`; add one, or start it with `lerobot-serve up {fleet}`'
        )
    return up.run(plan)


def conduct(
    *,
    folder: Folder = None,
    store: Annotated[
        Path | None, Argument(f'store of the versions ($ROS_HOME/{STORE})', 'FOLDER')
    ] = None,
    gates: Annotated[
        Path, Argument('folder of the gate records: gate_folder of the router', 'FOLDER')
    ],
    recordings: Annotated[
        Path, Argument('folder in which `lerobot-serve record` keeps bags', 'FOLDER')
    ],
    champion: Annotated[
        Path, Argument('folder of the policy that slot a serves at first', 'FOLDER')
    ],
    plan: Annotated[str, Argument('steps of each rollout')] = PLAN,
    gate_recordings: Annotated[
        int, Argument('newest bags that a version is compared on', 'N')
    ] = GATE_RECORDINGS,
    robot: Annotated[
        Path | None, Argument('robot file, where the bags lack the limits', 'FILE')
    ] = None,
    period_s: Annotated[float, Argument('time between two looks [s]', 'N')] = PERIOD_S,
    router: Annotated[
        str, Argument('the only one', 'NAME', names=operator_options.router_names)
    ] = '',
) -> int:
    """Conduct the loop, beside a fleet that runs. Raises UserError."""
    import signal
    import sys
    import threading

    from lerobot_serve.tools.loop.conductor import Conductor
    from lerobot_serve.tools.loop.journal import Journal
    from lerobot_serve.tools.loop.router_observer import router_observer
    from lerobot_serve.tools.loop.settings import LoopSettings
    from lerobot_serve.tools.loop.verb_process import run_verb, VerbResult

    check(plan, gate_recordings, period_s, champion, robot)
    settings = LoopSettings(
        folder=journal_folder(folder),
        store=(store or ros_home() / STORE).absolute(),
        gates=gates.absolute(),
        recordings=recordings.absolute(),
        champion=champion.absolute(),
        plan=plan,
        gate_recordings=gate_recordings,
        robot=robot.absolute() if robot else None,
        router=router,
        period_s=period_s,
    )
    stop = threading.Event()

    def verb(words: list[str], limit_s: float) -> VerbResult:
        return run_verb(words, limit_s, stop)

    def say(text: str) -> None:
        print(f'loop: {text}', file=sys.stderr, flush=True)

    with Journal(settings.folder) as journal, router_observer(settings.router) as observe:
        for number in SIGNALS:
            signal.signal(number, lambda *_: stop.set())
        # `up` starts its processes with these blocked; a verb inherits what this thread has
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        Conductor(settings, journal, observe, verb, say).run(stop)
        if journal.lost:
            say(f'{journal.lost} events are not in the journal: the disk did not take them')
    return 0


def check(
    plan: str, gate_recordings: int, period_s: float, champion: Path, robot: Path | None
) -> None:
    """Raise UserError for values that are not allowed."""
    from lerobot_serve.tools.operate.rollout.rollouts import parsed_plan

    parsed_plan(plan)
    if gate_recordings < LEAST_RECORDINGS:
        raise WrongCommandLine(
            f'--gate-recordings must be {LEAST_RECORDINGS} or more, which a gate needs, got '
            f'{gate_recordings}'
        )
    if not 0.1 <= period_s <= HOUR_S:
        raise WrongCommandLine(f'--period-s must be 0.1 to {HOUR_S:g}, got {period_s:g}')
    if not champion.is_dir():
        raise UserError(f'--champion {champion} is not a folder; give that of a policy')
    if robot and not robot.is_file():
        raise UserError(f'--robot {robot} is not a file; give a robot file')


def journal_folder(folder: Path | None) -> Path:
    """Return the folder of the journal."""
    return (folder or ros_home() / FOLDER).absolute()


def print_history(
    *,
    folder: Folder = None,
    hours: Annotated[float, Argument('of the last hours', 'N')] = 24.0,
    json: Annotated[bool, Argument('print JSON, a line for each event')] = False,
) -> int:
    """Print what the loop did. Raises UserError."""
    from datetime import timedelta

    from msgspec.structs import asdict

    from lerobot_serve.tools.loop import history
    from lerobot_serve.tools.loop.journal import read_journal, utc_now
    from lerobot_serve.tools.output.json_text import json_text
    from lerobot_serve.tools.output.text import without_controls

    if not 0 < hours <= HOURS_LIMIT:
        raise WrongCommandLine(f'--hours must be above 0, at most {HOURS_LIMIT:g}')
    since = (utc_now() - timedelta(hours=hours)).isoformat(timespec='seconds')
    place = journal_folder(folder)
    entries = list(read_journal(place))
    found = [entry for entry in entries if entry.at >= since]
    if json:
        for entry in found:
            print(json_text(asdict(entry)))
        return 0
    lines = [history.entry_line(each) for each in found]
    if not found:
        lines = [f'nothing in the last {hours:g} hours in {place}']
    if entries:
        lines += ['', *history.summary_lines(history.summarize(entries, since))]
    print('\n'.join(map(without_controls, lines)))
    return 0


add_arguments, main = steps_of({'up': start_fleet, 'run': conduct, 'history': print_history})
