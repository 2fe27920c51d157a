# SPDX-License-Identifier: Apache-2.0
"""
The longest gap between two commands of a robot, while its server swaps the policy and without.

Real processes, as in the demo: a simulated arm with its edge controller, and a server with the
demo's policies, whose chunks last a second. Main thread.
"""

from __future__ import annotations

import contextlib
import importlib.util
from itertools import pairwise
from pathlib import Path

from benchmarks.failover import CommandRecorder, FailoverSetup, robot, witnessed_stage
from benchmarks.harness.fleet_stage import FleetStage, server
from benchmarks.harness.nodes import wait_until_active
from benchmarks.results.outage import longest_ms, RecordedCommand
from benchmarks.results.report import Case
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.fleet_names import server_node_name
from lerobot_serve.demo.fleet_names import VERSIONS as FOLDERS
from lerobot_serve.demo.tour.link import DemoLink
from lerobot_serve.errors import UserError

ABOUT = 'the longest gap of commands while the server swaps the policy, and without'
ROUNDS_A_SWAP, LEAST_SWAPS = 10, 4
# from the request of a swap; longer than the swap and the chunks that were requested before it
WINDOW_S = 4.0
LIMIT_S = 60.0
WARM_UP_ACTIONS = 150
SERVER, VERSIONS = 'a1', ('v1', 'v2')
PARAMETERS = {
    'policy': 'builtin reach, v1 and v2 of the demo, by turns',
    'cameras': '2 x 224x224 raw',
    'window_s': WINDOW_S,
}
WITH, WITHOUT = 'with a swap', 'without'


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the case. Main thread. Raises UserError."""
    if importlib.util.find_spec('torch') is None:
        return [Case('not measured', {'why': 'torch is not installed, which the policy needs'})]
    with contextlib.ExitStack() as stack:
        stage, witness = witnessed_stage(stack, 1, folder)
        return [measure_swaps(stage, witness, max(LEAST_SWAPS, rounds // ROUNDS_A_SWAP))]


def measure_swaps(stage: FleetStage, witness: CommandRecorder, swaps: int) -> Case:
    """Start server and robot; swap so often, each time after a window without."""
    start(stage, witness)
    gaps: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    stalls = dict.fromkeys(gaps, 0)
    (name,) = stage.board.robots
    for number in range(swaps):
        policy = FOLDERS[VERSIONS[(number + 1) % 2]]
        for what, given in ((WITHOUT, ''), (WITH, policy)):
            before = stage.board.robots[name].edge.stalls
            gaps[what].append(longest_gap_ms(stage, witness.commands[name], given))
            stalls[what] += stage.board.robots[name].edge.stalls - before
    return Case(
        'commands of a robot while its server swaps the policy',
        {},
        {'swaps': swaps, **{f'stalls {what}': count for what, count in stalls.items()}},
        {f'longest gap {what}': values for what, values in gaps.items()},
        {},
        {'no stall with a swap': stalls[WITH] == 0},
    )


def start(stage: FleetStage, witness: CommandRecorder) -> None:
    """Start the server and the robot, and wait until it plays."""
    stage.start(server(SERVER, VERSIONS[0], DemoLink()))
    node = server_node_name(SERVER)
    wait_until_active(witness, node, stage.processes.processes[SERVER])
    way = FailoverSetup('swap', (SERVER,))
    (name,) = stage.board.robots
    for each in robot(way, name, 0, DemoLink()):
        stage.start(each)
    stage.wait(lambda: witness.played[name] >= WARM_UP_ACTIONS, LIMIT_S, 'the robot plays')


def longest_gap_ms(stage: FleetStage, commands: list[RecordedCommand], policy: str) -> float:
    """
    Return the longest time between two commands of an episode in the next window, which begins
    with a swap to a policy, if one is given. Raises UserError.
    """
    begin_s = steady_time.now_s()
    if policy:
        swap(stage, policy)
    stage.wait(
        lambda: commands and commands[-1].at_s >= begin_s + WINDOW_S, LIMIT_S, 'a window passes'
    )
    within = (each for each in commands if begin_s <= each.at_s <= begin_s + WINDOW_S)
    pairs = [pair for pair in pairwise(within) if pair[0].episode_id == pair[1].episode_id]
    return longest_ms(pairs)


def swap(stage: FleetStage, policy: str) -> None:
    """Swap the policy of the server, and wait until it is served. Raises UserError."""
    node = server_node_name(SERVER)
    accepted, text = stage.client.swap_policy(node, policy)
    if not accepted:
        raise UserError(f'{node} {text}')
    stage.wait(
        lambda: stage.client.server(node).swap is not ServerStatus.Swap.LOADING,
        LIMIT_S,
        'the swap ends',
    )
    if (found := stage.client.server(node)).swap is not ServerStatus.Swap.DONE:
        raise UserError(f'{node}: {found.swap_text}')
