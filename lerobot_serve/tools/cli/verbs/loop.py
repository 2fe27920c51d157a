# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve loop`: takes each new version of a learner through gate and canary, or back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.errors import UserError
from lerobot_serve.state_folder import expanded
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.signature import Argument, number, steps_of
from lerobot_serve.tools.loop.settings import CALL_LIMIT_S, JOURNAL, LoopSettings
from lerobot_serve.tools.output.report import Report

HELP = 'take each new version of a learner through gate and canary to the robots, or back'
EXAMPLE = (
    'example: lerobot-serve loop up loop; lerobot-serve loop history --hours 12  | exit status 0 '
    'after Ctrl-C, 1 when it cannot start, 2 for a wrong command line'
)
HOURS_LIMIT = 87600.0


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
    settings: LoopSettings,
    router: Annotated[
        str, Argument('the only one', 'NAME', names=operator_options.router_names)
    ] = '',
) -> int:
    """Conduct the loop, beside a fleet that runs. Raises UserError."""
    from dataclasses import replace
    import signal
    import sys
    import threading

    from lerobot_serve.tools.loop.conductor import Conductor
    from lerobot_serve.tools.loop.journal import Journal
    from lerobot_serve.tools.loop.observing import router_observer, run_verb, VerbResult
    from lerobot_serve.tools.operate.rollout.rollouts import parsed_plan

    parsed_plan(settings.plan)
    if not settings.champion.is_dir():
        raise UserError(f'--champion {settings.champion} is not a folder; give that of a policy')
    if settings.robot and not settings.robot.is_file():
        raise UserError(f'--robot {settings.robot} is not a file; give a robot file')
    stop = threading.Event()

    def verb(words: list[str], limit_s: float) -> VerbResult:
        return run_verb(words, limit_s, stop)

    def say(text: str) -> None:
        print(f'loop: {text}', file=sys.stderr, flush=True)

    fleet = operator_options.Fleet(CALL_LIMIT_S)
    with Journal(settings.folder) as journal, fleet.client() as client:
        for number in SIGNALS:
            signal.signal(number, lambda *_: stop.set())
        # `up` starts its processes with these blocked; a verb inherits what this thread has
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        observe, settings = router_observer(client, router), replace(settings, router=router)
        Conductor(settings, journal, observe, verb, say).run(stop)
        if journal.lost:
            say(f'{journal.lost} events are not in the journal: the disk did not take them')
    return 0


def show_history(
    *,
    folder: Annotated[Path, Argument('folder of the journal', 'FOLDER')] = JOURNAL,
    hours: Annotated[float, Argument('of the last hours', 'N', number('h', HOURS_LIMIT))] = 24.0,
) -> Report:
    """Print what the loop did. Raises UserError."""
    from datetime import timedelta

    from msgspec.structs import asdict

    from lerobot_serve.tools.loop import history
    from lerobot_serve.tools.loop.journal import read_journal, utc_now

    since = (utc_now() - timedelta(hours=hours)).isoformat(timespec='seconds')
    place = expanded(str(folder)).absolute()
    entries = list(read_journal(place))
    found = [entry for entry in entries if entry.at >= since]
    lines = [history.entry_line(each) for each in found]
    if not found:
        lines = [f'nothing in the last {hours:g} hours in {place}']
    if entries:
        lines += ['', *history.summary_lines(history.summarize(entries, since))]
    return Report({'events': list(map(asdict, found))}, lines)


add_arguments, main = steps_of({'up': start_fleet, 'run': conduct, 'history': show_history})
