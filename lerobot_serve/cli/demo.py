"""`lerobot-serve demo`: real processes, real topics, and a summary of what happened."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
import signal
import time

from lerobot_serve.cli.demo_watch import Watch
from lerobot_serve.cli.processes import Fleet, fleet
from lerobot_serve.cli.results import make_folder
from lerobot_serve.ros.domain import reserve
from lerobot_serve.ros.runtime import Runtime, UserError

EXAMPLE = 'example: lerobot-serve demo --seconds 20'
OUT = Path('out/demo')
ROBOT = '/robot_1'
SERVER = '/policy_server'
START_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--seconds', type=float, default=20.0, help='how long the robot runs (20)')


def main(options: argparse.Namespace) -> int:
    if not 1 <= options.seconds <= 86400:
        raise UserError(f'--seconds must be in [1, 86400], got {options.seconds:g}')
    make_folder(OUT)
    # ends like Ctrl-C, so that the processes that were started are ended too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # this machine only: a demo must not move anybody's robot
    domain = reserve()
    print('lerobot_serve demo: a simulated arm with two cameras reaches for red targets.')
    print(f'  {ROBOT[1:]:<14} sim_robot + edge_controller, without weights or torch')
    print(f'  {SERVER[1:]:<14} policy_server with a small trained policy')
    print(f'  ROS domain {domain}, this machine only; logs in {OUT}/', flush=True)
    begin = time.monotonic()
    runtime = Runtime([])
    watch = Watch(runtime, server=SERVER, robot=ROBOT)
    runtime.add(watch)
    runtime.spin_in_background()
    try:
        with fleet(OUT, dict(os.environ)) as processes:
            summary = drive(processes, watch, options.seconds, begin)
    finally:
        runtime.close()
    summary['exit_status'] = {n: p.returncode for n, p in processes.processes.items()}
    (OUT / 'summary.json').write_text(json.dumps(summary, indent=2) + '\n')
    print(f'\n{describe(summary)}')
    return 0 if summary['episodes'] and not any(summary['exit_status'].values()) else 1


def drive(processes: Fleet, watch: Watch, seconds: float, begin: float) -> dict:
    """Start everything, let it run, return the summary. Raises UserError."""
    processes.start('policy_server', 'policy_server')
    processes.start('edge_controller', 'edge_controller', namespace=ROBOT, task='reach the target')
    processes.start('sim_robot', 'sim_robot', namespace=ROBOT)
    wait(processes, watch, START_S, until=lambda: watch.executed > 0)
    first_action_s = time.monotonic() - begin
    print(f'  first action after {first_action_s:.1f} s; running for {seconds:g} s', flush=True)
    wait(processes, watch, seconds, show=True)
    return {'seconds': seconds, 'first_action_s': round(first_action_s, 2), **watch.summary()}


def wait(
    processes: Fleet, watch: Watch, seconds: float, *, until=None, show: bool = False
) -> None:
    """Wait so long, or until something holds. Raises UserError when that does not come true."""
    deadline = time.monotonic() + seconds
    shown = time.monotonic()
    while (left := deadline - time.monotonic()) > 0:
        if until and until():
            return
        gone = processes.ended()
        if gone:
            name = next(iter(gone))
            raise UserError(
                f'{name} ended with status {gone[name]}, its last words: '
                f'{processes.last_line(name)}; see {OUT}/{name}.log'
            )
        if show and time.monotonic() - shown >= 2:
            shown = time.monotonic()
            print(f'  {watch.line()}', flush=True)
        watch.news.wait(min(left, 0.1))
        watch.news.clear()
    if until:
        raise UserError(
            f'the robot did not move within {seconds:g} s ({watch.why_not()}); see {OUT}/*.log'
        )


def describe(summary: dict) -> str:
    """Return the summary for a person."""
    edge, age, trip = summary['edge'], summary['action_age_ms'], summary['round_trip_ms']
    ages = f'p50 {age["p50"]:.0f} ms, p99 {age["p99"]:.0f} ms, oldest {age["max"]:.0f} ms'
    trips = f'p50 {trip["p50"]:.1f} ms, p99 {trip["p99"]:.1f} ms'
    caged = f'{edge["cage_trips"]} changed by the safety cage'
    drops = ', '.join(f'{k} {v}' for k, v in summary['drops'].items())
    rows = [
        ('episodes', f'{summary["episodes"]} ended, {summary["successes"]} reached the target'),
        ('policy', summary['policy']),
        ('actions', f'{edge["actions_executed"]} executed, {caged}'),
        ('action age', ages),
        ('chunks', f'{edge["chunks_accepted"]} for {edge["requests_sent"]} requests'),
        ('round trip', f'{trips}, of it inference p50 {summary["inference_ms_p50"]:.1f} ms'),
        ('stalls', str(edge['stalls'])),
        ('control ticks', f'{edge["ticks"]} and {edge["ticks_missed"]} missed'),
        ('dropped', drops or 'none'),
        ('torch on the robot', 'YES' if summary['edge_has_torch'] else 'no'),
    ]
    width = max(len(label) for label, _ in rows)
    lines = [f'  {label:<{width}}  {value}' for label, value in rows]
    head, foot = f'In {summary["seconds"]:g} s:', f'All figures: {OUT}/summary.json'
    return '\n'.join([head, *lines, foot])
