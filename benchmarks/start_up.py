# SPDX-License-Identifier: Apache-2.0
"""
How long it takes until something works: a policy server, and the demo.

Servers with a small ACT and with the demo's policy are started in turn, each in a new process with
autostart off. Once the node answers, it is configured and activated, which loads LeRobot or torch,
the weights, and warms the policy up; then it is emptied and does so again, as when a server is
given another version. The demo is the command that `make demo` ends in, told to play its first
act, and once as a whole; what make does before that is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from functools import partial
import importlib.util
import json
from pathlib import Path
import subprocess
import tempfile
import time
from typing import Any

from lifecycle_msgs.srv import ChangeState
from rclpy.node import Node

from benchmarks.harness.nodes import spinning_node
from benchmarks.harness.processes import child, node_command, took_ms
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.processes import executable_path
from lerobot_serve_interfaces.srv import GetStatus

ABOUT = 'from the start of a process to a server that is ready, and to robots that move'
ROUNDS_A_START, ROUNDS_A_DEMO, WARM_UP_STARTS = 40, 60, 1
DEMO_ROBOTS, DEMO_LIMIT_S = 3, 600.0
# exit status of a demo in which an act does not prove its claim
ACTS_FAILED = 1
# of a quiet machine with two cores
FIRST_MOTION_GOAL_S, TOUR_GOAL_S = 10.0, 240.0
LIMIT_S, POLL_S, ANSWER_S = 120.0, 0.005, 1.0
ACT, REACH = 'a small ACT', 'the built-in reach policy'
LOADING, AGAIN = ('configure', 'activate'), ('deactivate', 'cleanup')
PARAMETERS = {
    'rounds_a_start': ROUNDS_A_START,
    'rounds_a_demo': ROUNDS_A_DEMO,
    'warm_up_starts': WARM_UP_STARTS,
    'cpu_threads': 1,
    'order': f'{ACT}, {REACH}, {ACT}, ...',
}
Series = dict[str, list[float]]


class LifecycleClient:
    """One server, asked by its lifecycle. The main thread's."""

    def __init__(self, node: Node, server: str, process: subprocess.Popen, log: str) -> None:
        self._process, self._why = process, f'{server} did not come up; see {log}'
        self._status = node.create_client(GetStatus, f'{server}/get_status')
        self._change = node.create_client(ChangeState, f'{server}/change_state')
        self._close = [partial(node.destroy_client, c) for c in (self._status, self._change)]

    def close(self) -> None:
        for close in self._close:
            close()

    def wait_until_up(self) -> None:
        """Return as soon as the node answers. Raises UserError."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._status.service_is_ready() and self._change.service_is_ready():
                # an answer that is sent before the two have fully found each other is lost
                with contextlib.suppress(ServiceCallFailed):
                    call_service(self._status, GetStatus.Request(), ANSWER_S)
                    return
            time.sleep(POLL_S)
        raise UserError(self._why)

    def go(self, *transitions: str) -> None:
        """Go through transitions of the lifecycle. Raises UserError."""
        for name in transitions:
            request = ChangeState.Request()
            request.transition.label = name
            try:
                done = call_service(self._change, request, LIMIT_S).success
            except ServiceCallFailed as error:
                raise UserError(str(error)) from error
            if not done:
                raise UserError(f'{name} failed; {self._why}')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case for each policy, and one for the demo. Main thread. Raises UserError."""
    if importlib.util.find_spec('torch') is None:
        return [Case('not measured', {'why': 'torch is not installed, which the policies need'})]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        policies, cases = find_policies(Path(scratch))
        cases += measure_servers(policies, max(2, rounds // ROUNDS_A_START), folder)
        cases.append(measure_demo(max(1, rounds // ROUNDS_A_DEMO), Path(scratch), folder))
        return [*cases, measure_tour(Path(scratch), folder)]


def find_policies(scratch: Path) -> tuple[dict[str, dict[str, object]], list[Case]]:
    """Return the parameters of a server for each policy, and a case for each that is not there."""
    # imports torch
    from benchmarks.policies import small_act

    reach = {'policy_kind': 'builtin', 'policy_path': shared_file('config/policies/reach')}
    try:
        act = small_act.server_parameters(small_act.build(scratch / 'act_small'))
    except PolicyError as error:
        return {REACH: reach}, [Case(f'policy_server with {ACT}', {'not_measured': str(error)})]
    return {ACT: act, REACH: reach}, []


def measure_servers(
    policies: dict[str, dict[str, object]], starts: int, folder: Path
) -> list[Case]:
    """Start a server with each policy in turn, so often. Raises UserError."""
    found: dict[str, Series] = {name: {} for name in policies}
    with spinning_node('bench_start_up') as node:
        for number in range(WARM_UP_STARTS + starts):
            for which, (name, parameters) in enumerate(policies.items()):
                # a name of its own: nobody is to answer for the one before
                server = f'/server_{which}_{number}'
                for what, ms in start_once(node, server, parameters, folder):
                    if number >= WARM_UP_STARTS:
                        found[name].setdefault(what, []).append(ms)
    return [Case(f'policy_server with {name}', series_ms=each) for name, each in found.items()]


def start_once(
    node: Node, server: str, parameters: dict[str, object], folder: Path
) -> Iterator[tuple[str, float]]:
    """Yield what each step took [ms]. Raises UserError."""
    given = parameters | {'cpu_threads': 1, 'autostart': False}
    command = node_command('policy_server', given, server[1:])
    log = 'start_up_server.log'
    begin_ns = time.monotonic_ns()
    with child(command, folder / log) as process:
        operator = LifecycleClient(node, server, process, log)
        try:
            operator.wait_until_up()
            yield 'process start to node up', since_ms(begin_ns)
            yield 'configure to ready', took_ms(partial(operator.go, *LOADING))
            yield 'the same, from process start', since_ms(begin_ns)
            operator.go(*AGAIN)
            yield 'configure to ready, again', took_ms(partial(operator.go, *LOADING))
        finally:
            operator.close()


def since_ms(begin_ns: int) -> float:
    return (time.monotonic_ns() - begin_ns) / 1e6


def measure_demo(times: int, scratch: Path, folder: Path) -> Case:
    """Run the demo's first act so often. Raises UserError."""
    command = demo_command('--acts', 'serve')
    series_ms: Series = {
        'motion of the first robot': [],
        'motion of all robots': [],
        'the whole command': [],
    }
    for _ in range(times):
        begin_ns = time.monotonic_ns()
        figures = play(command, scratch, folder / 'start_up_demo.log')
        series_ms['the whole command'].append(since_ms(begin_ns))
        act = figures['acts']['serve']
        series_ms['motion of the first robot'].append(1000 * act['first_motion_s'])
        series_ms['motion of all robots'].append(1000 * act['all_move_s'])
    return Case(
        'lerobot-serve demo --acts serve',
        {'robots': DEMO_ROBOTS, 'servers': 2},
        {},
        series_ms,
        goals=first_motion_goal(max(series_ms['motion of the first robot']) / 1000),
    )


def measure_tour(scratch: Path, folder: Path) -> Case:
    """Run the whole demo once. Raises UserError."""
    figures = play(demo_command(), scratch, folder / 'start_up_tour.log', (0, ACTS_FAILED))
    first_s, whole_s = figures['acts']['serve']['first_motion_s'], figures['seconds']
    return Case(
        'lerobot-serve demo',
        {'robots': DEMO_ROBOTS, 'servers': 4},
        {},
        {'motion of the first robot': [1000 * first_s], 'the whole demo': [1000 * whole_s]},
        goals=first_motion_goal(first_s)
        | {
            f'the whole demo within {TOUR_GOAL_S:g} s': whole_s <= TOUR_GOAL_S,
            'every act proves its claim': bool(figures['ok']),
        },
    )


def demo_command(*options: str) -> list[str]:
    """Return the command that `make demo` ends in."""
    demo = [str(executable_path('lerobot-serve')), 'demo']
    return [*demo, '--robots', str(DEMO_ROBOTS), *options]


def first_motion_goal(first_s: float) -> dict[str, bool]:
    goal = f'the first robot moves within {FIRST_MOTION_GOAL_S:g} s'
    return {goal: first_s <= FIRST_MOTION_GOAL_S}


def play(
    command: list[str], scratch: Path, log: Path, statuses: tuple[int, ...] = (0,)
) -> dict[str, Any]:
    """Return what the demo found out; `statuses` are those with figures. Raises UserError."""
    with child(command, log, folder=scratch) as process:
        try:
            status = process.wait(DEMO_LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
    if status not in statuses:
        raise UserError(f'the demo ended with {status} within {DEMO_LIMIT_S:g} s; see {log.name}')
    return json.loads((scratch / 'out' / 'demo' / 'summary.json').read_text())
