# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve demo`: promotes a good policy and rolls back a bad one on simulated robots."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
import shutil
import signal
import time
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.demo.scoreboard import Scoreboard

HELP = 'run simulated robots, promote a good policy and roll back a bad one'
EXAMPLE = (
    'example: lerobot-serve demo --phases kill  | exit status 0 when every phase proves its claim'
)
OUT = Path('out/demo')
PLAN = '25:2,50:4,100'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.demo import process_specs

    parser.add_argument(
        '--phases',
        default=','.join(process_specs.PHASE_CLAIMS),
        metavar='PHASE,...',
        help='phases to run, with those that they require (all): '
        + ', '.join(process_specs.PHASE_CLAIMS),
    )
    parser.add_argument('--robots', type=int, default=3, help='simulated robots (3)')
    parser.add_argument('--seed', type=int, default=0, help='seed of the target positions (0)')
    parser.add_argument(
        '--plan', default=PLAN, help=f'steps of the canary: SHARE:EPISODES,... ({PLAN})'
    )


def main(options: argparse.Namespace) -> int:
    """Return 0 if every phase proves its claim. Raises UserError, ParameterError."""
    import json

    from lerobot_serve.demo import process_specs
    from lerobot_serve.demo.audit_summary import audit_traces
    from lerobot_serve.demo.report import arm_animations, html_report
    from lerobot_serve.demo.scoreboard import Scoreboard
    from lerobot_serve.demo.summary import as_text, summarize_run
    from lerobot_serve.ros.process.private_domain import reserve_domain
    from lerobot_serve.tools.cli.output_folder import make_folder

    phases, plan = checked(options)
    make_folder(OUT)
    for old in ('traces', 'state'):
        shutil.rmtree(OUT / old, ignore_errors=True)
    # SIGTERM acts like Ctrl-C, so that the started processes end, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # this machine only: the demo must not move a real robot
    domain = reserve_domain()
    print(
        f'lerobot_serve demo in ROS domain {domain}, this machine only; logs in {OUT}/', flush=True
    )
    board = Scoreboard(process_specs.robot_names(options.robots))
    begin_s = time.monotonic()
    figures, codes, error = run_phases(phases, board, plan, options.seed)
    seconds = time.monotonic() - begin_s
    found = summarize_run(board, figures, audit_traces(OUT / 'traces'), codes, seconds, error)
    (OUT / 'summary.json').write_text(json.dumps(found, indent=2) + '\n')
    (OUT / 'report.html').write_text(html_report(board, found), errors='replace')
    (OUT / 'arms.svg').write_text(arm_animations(board))
    print(f'\n{as_text(found)}\nAll figures: {OUT}/summary.json; pictures: {OUT}/report.html')
    return 0 if found['ok'] else 1


def run_phases(
    phases: list[str], board: Scoreboard, plan: tuple[str, ...], seed: int
) -> tuple[dict[str, Any], dict[str, int], str]:
    """Run the phases; return their figures, the exit statuses and the error, if any."""
    from lerobot_serve.demo import process_specs
    from lerobot_serve.demo.node import DemoMonitor
    from lerobot_serve.demo.phase_context import DemoSettings, PhaseContext
    from lerobot_serve.demo.phases import PHASE_FUNCTIONS
    from lerobot_serve.demo.screen import Screen
    from lerobot_serve.errors import UserError
    from lerobot_serve.ros.package_share import shared_file
    from lerobot_serve.ros.process.node_runtime import NodeRuntime
    from lerobot_serve.tools.processes.node_processes import node_processes

    runtime = NodeRuntime([])
    figures: dict[str, Any] = {}
    error = ''
    try:
        monitor = DemoMonitor(runtime, board)
        runtime.add(monitor)
        runtime.spin_in_background()
        screen = Screen(board, {name: process_specs.PHASE_CLAIMS[name] for name in phases})
        settings = DemoSettings(OUT, shared_file('config/policies'), plan, seed)
        with node_processes(OUT, dict(os.environ)) as processes, screen:
            context = PhaseContext(processes, monitor, screen, settings)
            try:
                for phase in phases:
                    screen.mark_phase(phase, '->')
                    figures[phase] = PHASE_FUNCTIONS[phase](context)
                    screen.mark_phase(phase, 'ok' if figures[phase]['shown'] else '!!')
            except UserError as failed:
                error = str(failed)
            (OUT / 'screen.svg').write_text(screen.picture())
    finally:
        runtime.close()
    return figures, {n: p.returncode for n, p in processes.processes.items()}, error


def checked(options: argparse.Namespace) -> tuple[list[str], tuple[str, ...]]:
    """Return phases and plan. Raises ParameterError."""
    from lerobot_serve.demo import process_specs
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.router.canary.plan import parse_plan

    names = [name for name in options.phases.split(',') if name]
    if unknown := [name for name in names if name not in process_specs.PHASE_CLAIMS]:
        raise ParameterError(
            f'--phases: unknown phase {unknown[0]!r}; known: '
            f'{", ".join(process_specs.PHASE_CLAIMS)}'
        )
    if not 1 <= options.robots <= process_specs.ROBOTS_LIMIT:
        raise ParameterError(
            f'--robots must be in [1, {process_specs.ROBOTS_LIMIT}], got {options.robots}'
        )
    if options.seed < 0:
        raise ParameterError(f'--seed must be at least 0, got {options.seed}')
    plan = tuple(options.plan.split(','))
    parse_plan(plan, minimum_episodes=1, minimum_s=0.0, name='--plan')
    return process_specs.ordered_phases(names), plan
