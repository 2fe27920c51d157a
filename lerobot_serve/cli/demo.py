"""`lerobot-serve demo`: a fleet in real processes, two policies, a broken third, and a summary."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
import shutil
import signal
import time
from typing import Any

from lerobot_serve.cli.processes import fleet
from lerobot_serve.cli.results import make_folder
from lerobot_serve.demo import cast
from lerobot_serve.demo.acts import PLAY
from lerobot_serve.demo.node import Onlooker
from lerobot_serve.demo.proof import proof
from lerobot_serve.demo.report import arms, report
from lerobot_serve.demo.scoreboard import Scoreboard
from lerobot_serve.demo.screen import Screen
from lerobot_serve.demo.stage import Stage
from lerobot_serve.demo.summary import describe, summary
from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros.domain import reserve
from lerobot_serve.ros.runtime import Runtime, UserError
from lerobot_serve.ros.share import shared_file
from lerobot_serve.router.canary.plan import parse_plan

EXAMPLE = 'example: lerobot-serve demo --acts kill  | ends with 0 when every act showed its point'
OUT = Path('out/demo')
PLAN = '5:2,25:4,50:6,100'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--acts',
        default=','.join(cast.CLAIMS),
        metavar='ACT,...',
        help=f'what to play, with what it needs; of {", ".join(cast.CLAIMS)} (all)',
    )
    parser.add_argument('--robots', type=int, default=3, help='simulated robots (3)')
    parser.add_argument('--seed', type=int, default=0, help='decides where targets appear (0)')
    parser.add_argument(
        '--plan', default=PLAN, help=f'steps of the canary: SHARE:EPISODES,... ({PLAN})'
    )


def main(options: argparse.Namespace) -> int:
    """Return 0 when every act showed its point. Raises UserError, ParameterError."""
    acts, plan = checked(options)
    make_folder(OUT)
    for old in ('traces', 'state'):
        shutil.rmtree(OUT / old, ignore_errors=True)
    # ends like Ctrl-C, so that the processes that were started are ended too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # this machine only: a demo must not move anybody's robot
    domain = reserve()
    print(
        f'lerobot_serve demo in ROS domain {domain}, this machine only; logs in {OUT}/', flush=True
    )
    board = Scoreboard(cast.robot_names(options.robots))
    begin_s = time.monotonic()
    figures, codes, error = perform(acts, board, plan, options.seed)
    seconds = time.monotonic() - begin_s
    found = summary(board, figures, proof(OUT / 'traces'), codes, seconds, error)
    (OUT / 'summary.json').write_text(json.dumps(found, indent=2) + '\n')
    (OUT / 'report.html').write_text(report(board, found), errors='replace')
    (OUT / 'arms.svg').write_text(arms(board))
    print(f'\n{describe(found)}\nAll figures: {OUT}/summary.json; pictures: {OUT}/report.html')
    return 0 if found['ok'] else 1


def perform(
    acts: list[str], board: Scoreboard, plan: tuple[str, ...], seed: int
) -> tuple[dict[str, Any], dict[str, int], str]:
    """Play the acts; return their figures, how processes ended, and what went wrong, if any."""
    runtime = Runtime([])
    figures: dict[str, Any] = {}
    error = ''
    try:
        onlooker = Onlooker(runtime, board)
        runtime.add(onlooker)
        runtime.spin_in_background()
        screen = Screen(board, {name: cast.CLAIMS[name] for name in acts})
        policies = shared_file('config/policies')
        with fleet(OUT, dict(os.environ)) as processes, screen:
            stage = Stage(processes, onlooker, screen, OUT, policies, plan, seed)
            try:
                for act in acts:
                    screen.mark(act, '->')
                    figures[act] = PLAY[act](stage)
                    screen.mark(act, 'ok' if figures[act]['shown'] else '!!')
            except UserError as failed:
                error = str(failed)
            (OUT / 'screen.svg').write_text(screen.picture())
    finally:
        runtime.close()
    return figures, {n: p.returncode for n, p in processes.processes.items()}, error


def checked(options: argparse.Namespace) -> tuple[list[str], tuple[str, ...]]:
    """Return acts and plan. Raises ParameterError."""
    names = [name for name in options.acts.split(',') if name]
    if unknown := [name for name in names if name not in cast.CLAIMS]:
        raise ParameterError(
            f'--acts: there is no act {unknown[0]!r}; there are {", ".join(cast.CLAIMS)}'
        )
    if not 1 <= options.robots <= cast.ROBOTS_LIMIT:
        raise ParameterError(f'--robots must be in [1, {cast.ROBOTS_LIMIT}], got {options.robots}')
    if options.seed < 0:
        raise ParameterError(f'--seed must be at least 0, got {options.seed}')
    plan = tuple(options.plan.split(','))
    parse_plan(plan, minimum_episodes=1, minimum_s=0.0, name='--plan')
    return cast.acts(names), plan
