# SPDX-License-Identifier: Apache-2.0
"""
Run the acts of the demo and write its results. The main thread.

The fleet starts before this process imports ROS, so that the robots move sooner.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
import shutil
import sys
import time
from typing import TYPE_CHECKING

from lerobot_serve.demo import steady_time
from lerobot_serve.demo.child_processes import child_processes, ChildProcesses, DashboardProcess
from lerobot_serve.demo.fleet_names import robot_names, STATE
from lerobot_serve.demo.tour import fleet_files, learning_fleet
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS, DemoOptions, LEARNING, SERVING
from lerobot_serve.demo.tour.link import join_text, TypedCommand, VerbCommand
from lerobot_serve.errors import UserError

if TYPE_CHECKING:
    from lerobot_serve.demo.results.report import DemoRun
    from lerobot_serve.demo.results.scoreboard import Scoreboard
    from lerobot_serve.demo.results.screen import Screen
    from lerobot_serve.demo.tour.act_context import ActContext

__all__ = ['DemoOptions', 'run_demo']

FLEET_FILES = {SERVING: fleet_files.FLEET_FILE, LEARNING: learning_fleet.LEARNING_FILE}
FLEET_REMARKS = {
    SERVING: 'servers of v1, a router and the robots',
    LEARNING: 'servers of one policy, a router, the robots, a recorder, a learner and the loop',
}
DASHBOARD_REMARK = 'the page of this fleet; its address is printed as soon as it is served'
DASHBOARD_TOKENS = 'dashboard_token'
# `up` as it is printed, and the dashboard
Started = tuple[TypedCommand, DashboardProcess | None]
CLIENT_TIMEOUT_S = 5.0
# what an earlier run left and this one would add to
LEFTOVERS = (
    fleet_files.TRACES,
    STATE,
    fleet_files.POLICIES,
    *learning_fleet.FOLDERS,
)


def run_demo(options: DemoOptions) -> bool:
    """Run the acts, write the results, print the summary; return whether all was shown."""
    prepare(options)
    begin_s = time.monotonic()
    environment = {**os.environ, 'ROS_DOMAIN_ID': str(options.domain)}
    with child_processes(options.folder, environment) as children:
        # before the imports below, which take longer than the start of the robots
        fleet, dashboard = start_fleet(options, children)
        from lerobot_serve.demo.results.report import DemoRun
        from lerobot_serve.demo.results.scoreboard import Scoreboard

        board, run = Scoreboard(robot_names(options.robots)), DemoRun()
        picture = run_acts(options, children, (fleet, dashboard), board, run)
    run.seconds = time.monotonic() - begin_s
    run.exit_status = {n: child.process.returncode for n, child in children.children.items()}
    return write_results(options.folder, board, run, picture)


def prepare(options: DemoOptions) -> None:
    """Write policies and fleet files into the folder, without what an earlier run left."""
    from lerobot_serve.ros.package_share import shared_file

    for name in LEFTOVERS:
        shutil.rmtree(options.folder / name, ignore_errors=True)
    robots, shipped = robot_names(options.robots), shared_file('config/policies')
    if options.tour == LEARNING:
        learning_fleet.write_learning_files(
            options.folder, shipped, robots, options.seed, options.plan, options.link
        )
        return
    fleet_files.write_policies(shipped, options.folder)
    fleet_files.write_fleet_files(options.folder, robots, options.seed, options.link)


def start_fleet(options: DemoOptions, children: ChildProcesses) -> Started:
    """Start `up` of the fleet file, and the dashboard; return the command as it is printed."""
    file, now_s = FLEET_FILES[options.tour], steady_time.now_s()
    command = VerbCommand(('up', str(options.folder / file)), options.domain)
    typed = TypedCommand(now_s, options.acts[0], command.text, FLEET_REMARKS[options.tour])
    children.start(Path(file).stem, command.command)
    if not options.has_dashboard:
        return typed, None
    page = VerbCommand(dashboard_words(options.folder), options.domain)
    shown = TypedCommand(now_s, options.acts[0], page.text, DASHBOARD_REMARK)
    # its output is a log, which this user alone may read
    dashboard = DashboardProcess(children, [*page.command, '--print-token'], shown)
    dashboard.start()
    return typed, dashboard


def dashboard_words(folder: Path) -> tuple[str, ...]:
    """Return the verb that serves the page, as it is printed."""
    traces, tokens = folder / fleet_files.TRACES, folder / DASHBOARD_TOKENS
    return ('dashboard', '--trace-folder', str(traces), '--token-file', str(tokens))


def run_acts(
    options: DemoOptions,
    children: ChildProcesses,
    started: Started,
    board: Scoreboard,
    run: DemoRun,
) -> str:
    """Run the acts; return the last frame of the screen as a picture."""
    from lerobot_serve.demo.node import DemoMonitor
    from lerobot_serve.demo.results.screen import Screen
    from lerobot_serve.demo.tour.act_context import ActContext
    from lerobot_serve.ros.process.node_runtime import NodeRuntime
    from lerobot_serve.tools.operate.fleet_client import FleetClient

    heading = (
        f'ROS domain {options.domain}, this machine only; logs and results in {options.folder}/',
        join_text(options.domain),
    )
    screen = Screen(board, {act: ACT_CLAIMS[act] for act in options.acts}, heading)
    with contextlib.ExitStack() as stack:
        runtime = NodeRuntime([])
        stack.callback(runtime.close)
        monitor = DemoMonitor(runtime, board)
        runtime.add(monitor)
        runtime.spin_in_background()
        client = stack.enter_context(FleetClient(CLIENT_TIMEOUT_S, node=monitor))
        stack.enter_context(screen)
        context = ActContext(children, client, monitor, screen, options)
        run.commands = screen.commands
        try:
            play(options, context, started, run)
        except UserError as failed:
            run.error = str(failed)
        return screen.picture()


def play(options: DemoOptions, context: ActContext, started: Started, run: DemoRun) -> None:
    """Run one act after the other. Raises UserError."""
    from lerobot_serve.demo.tour.acts import SERVING_ACTS
    from lerobot_serve.demo.tour.learning_acts import LEARNING_ACTS

    screen: Screen = context.screen
    functions = SERVING_ACTS | LEARNING_ACTS
    for act in options.acts:
        context.act = act
        screen.mark_act(act, '->')
        if act == options.acts[0]:
            context.adopt(FLEET_FILES[options.tour], *started)
        run.acts[act] = functions[act](context)
        screen.mark_act(act, 'ok' if run.acts[act]['shown'] else '!!')
    if options.keeps_running:
        screen.add_heading('all acts have run; the fleet runs on until Ctrl-C')
        with contextlib.suppress(KeyboardInterrupt):
            context.wait(lambda: False, float('inf'), 'Ctrl-C')


def write_results(folder: Path, board: Scoreboard, run: DemoRun, picture: str) -> bool:
    """Write figures, report and pictures, print the summary; return whether all was shown."""
    from lerobot_serve.demo.results.report import (
        arm_animations,
        as_text,
        html_report,
        summarize_run,
    )
    from lerobot_serve.demo.results.run_records import audit_traces, read_records, RunRecords
    from lerobot_serve.trace.format.run_files import TraceError

    traces = folder / fleet_files.TRACES
    try:
        records = read_records(traces)
    except TraceError as error:
        records = RunRecords()
        run.error = run.error or str(error)
    found = summarize_run(board, run, records, audit_traces(traces))
    (folder / 'summary.json').write_text(json.dumps(found, indent=2) + '\n')
    (folder / 'report.html').write_text(html_report(board, run, records, found), errors='replace')
    (folder / 'arms.svg').write_text(arm_animations(board))
    (folder / 'screen.svg').write_text(picture)
    sys.stdout.write(
        f'\n{as_text(found)}\nAll figures: {folder}/summary.json; pictures: {folder}/report.html\n'
    )
    return bool(found['ok'])
