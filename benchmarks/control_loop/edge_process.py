# SPDX-License-Identifier: Apache-2.0
"""
What an edge controller costs its robot: the CPU time of its process.

The real node at 30 Hz with the two cameras of the simulated arm at 480x640, beside the demo's
policy, whose chunks of a second make it ask about twice a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
from pathlib import Path
import subprocess
import time

from rclpy.node import Node

from benchmarks.harness.client import READY_TIMEOUT_S
from benchmarks.harness.nodes import spinning_node
from benchmarks.harness.processes import child, cpu_s, node_command, wait_until
from benchmarks.results.report import Case
from lerobot_serve.ros import qos
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve_interfaces.msg import EdgeState

ABOUT = 'CPU time of the edge controller'
SECONDS, WARM_UP_S, HEIGHT, WIDTH = 20.0, 3.0, 480, 640
ROBOT = '/bench_robot'
PARAMETERS = {'cameras': f'2 x {HEIGHT}x{WIDTH} JPEG', 'rate_hz': 30, 'seconds': SECONDS}
GOAL_SHARE = 0.15


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the one case. Main thread. Raises UserError."""
    states: list[EdgeState] = []
    with spinning_node('bench_edge') as node, streaming_edge(node, states, folder) as edge:
        time.sleep(WARM_UP_S)
        return [observe(edge.pid, states)]


def command(name: str, namespace: str, **parameters: object) -> list[str]:
    return node_command(name, parameters, namespace=namespace)


@contextlib.contextmanager
def server_and_arm(
    robot: str, folder: Path, server: Mapping[str, object] | None = None, **arm: object
) -> Iterator[None]:
    """Run the demo's policy, with more parameters of its server, and a simulated arm."""
    policy = {'policy_path': shared_file('config/policies/reach'), **(server or {})}
    with (
        child(command('policy_server', '', **policy), folder / 'policy_server.log'),
        child(command('sim_robot', robot, **arm), folder / 'sim_robot.log'),
    ):
        yield


@contextlib.contextmanager
def streaming_edge(
    node: Node, states: list[EdgeState], folder: Path
) -> Iterator[subprocess.Popen]:
    """
    Run server, arm and edge controller; give the process of the edge once it streams. The executor
    of `node` appends its states. Raises UserError.
    """
    edge, log = f'{ROBOT}/edge_controller', folder / 'edge_controller.log'
    node.create_subscription(EdgeState, f'{edge}/state', states.append, qos.STATE)
    with (
        server_and_arm(ROBOT, folder, image_height=HEIGHT, image_width=WIDTH),
        child(command('edge_controller', ROBOT), log) as process,
    ):
        wait_until(
            lambda: states and states[-1].state == EdgeState.STREAMING,
            f'the edge controller does not stream; see {log.name}',
            READY_TIMEOUT_S,
        )
        yield process


def observe(pid: int, states: list[EdgeState]) -> Case:
    """Compare the process with itself SECONDS later."""
    first, begin_s, begin_cpu_s = states[-1], time.monotonic(), cpu_s(pid)
    time.sleep(SECONDS)
    last, passed_s = states[-1], time.monotonic() - begin_s
    share = (cpu_s(pid) - begin_cpu_s) / passed_s
    return Case(
        'edge_controller',
        parameters={
            'share_of_a_core': round(share, 3),
            'requests_per_s': round((last.requests_sent - first.requests_sent) / passed_s, 2),
            'commands_per_s': round(
                (last.actions_executed - first.actions_executed) / passed_s, 1
            ),
        },
        counts={
            'stalls': last.stalls - first.stalls,
            'control_steps_missed': last.control_steps_missed - first.control_steps_missed,
        },
        goals={f'under {GOAL_SHARE:.0%} of a core': share < GOAL_SHARE},
    )
