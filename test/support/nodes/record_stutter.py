# SPDX-License-Identifier: Apache-2.0
"""
Records the incident of docs/runbook.md anew: `python test/support/nodes/record_stutter.py FOLDER`.

Two robots, robot_217 and robot_218, ask one policy server through a router, all in processes of
their own. For a few seconds a crowd of other robots asks the same server, whose policy takes its
time: the queue grows, and both robots run out of actions; somebody captures. FOLDER then has the
traces of both edges, the router and the server, and the capture, as they were written. The policy
is the null policy, but slow (test/support/plugins/slow_null). Main thread; the node spins in
another.
"""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import sys
import tempfile
import time

from rclpy.node import Node
from std_srvs.srv import Trigger

from benchmarks.harness.processes import node_processes, NodeProcesses
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.ros.process.private_domain import reserve_domain
from lerobot_serve_interfaces.msg import EdgeState
from support.nodes.played_robot import Body, robot_yaml
from support.nodes.small_client import SmallClient
from support.paths import PLUGINS

ROBOTS = ('robot_217', 'robot_218')
PLUGIN = PLUGINS / 'slow_null'
CROWD, CALM_S, CROWDED_S, AFTER_S, START_S = 12, 7.0, 3.5, 3.0, 60.0
CAPTURE_AFTER_S = 1.5
# ten steps a second, and chunks of one second
RATE = ('fps: 30', 'fps: 10')
POLICY = 'joints=6,chunk=10,cameras=,fps=10'
EDGE = {
    'servers': "['/policy_router']",
    'request_threshold_s': 0.4,
    'request_timeout_s': 4.0,
    'max_action_age_s': 3.0,
    'trace_images': 'none',
}


def main(target: Path) -> int:
    """Return 0; `target` then has the traces and nothing else."""
    reserve_domain()
    runtime = NodeRuntime([])
    node = Node('recorder_of_a_stutter', context=runtime.context)
    runtime.add(node)
    runtime.spin_in_background()
    path = os.pathsep.join([str(PLUGIN), os.environ.get('PYTHONPATH', '')])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with node_processes(folder, {**os.environ, 'PYTHONPATH': path}) as processes:
                play(node, processes, folder)
                end_in_order(processes)
        finally:
            runtime.close()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / 'traces', target)
    return 0


def play(node: Node, processes: NodeProcesses, folder: Path) -> None:
    """Start everything, let it go well, let the crowd come and go."""
    traces = folder / 'traces'
    processes.start(
        'server',
        'policy_server',
        policy_kind='slow_null',
        policy_path=POLICY,
        trace_folder=traces / 'policy_server',
        trace_images='none',
        capture_folder=traces / 'captures',
    )
    processes.start(
        'router',
        'policy_router',
        slot_prod="['/policy_server']",
        trace_folder=traces / 'policy_router',
    )
    crowd = [
        SmallClient(node, '/policy_router', f'robot_{300 + i}', cameras=()) for i in range(CROWD)
    ]
    for client in crowd:
        client.open(START_S)
    file = folder / 'robot.yaml'
    file.write_text(robot_yaml().replace(*RATE))
    states: dict[str, EdgeState] = {}
    bodies = []
    for name in ROBOTS:
        bodies.append(Body(node, f'/{name}'))
        node.create_subscription(
            EdgeState,
            f'/{name}/edge_controller/state',
            lambda state, name=name: states.update({name: state}),
            qos.STATE,
        )
        more = {'robot_file': file, 'trace_folder': traces / name, **EDGE}
        processes.start(name, 'edge_controller', namespace=f'/{name}', **more)
    wait_until_streaming(states)
    time.sleep(CALM_S)
    waiting: set[int] = set()
    ask_all(crowd, CAPTURE_AFTER_S, waiting)
    capture = node.create_client(Trigger, '/policy_server/capture')
    call_service(capture, Trigger.Request(), START_S)
    ask_all(crowd, CROWDED_S - CAPTURE_AFTER_S, waiting)
    time.sleep(AFTER_S)


def wait_until_streaming(states: dict[str, EdgeState]) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + START_S
    while [s.state for s in states.values()] != [EdgeState.STREAMING] * len(ROBOTS):
        if time.monotonic() > deadline:
            raise TimeoutError(f'no stream: {states}')
        time.sleep(0.05)


def ask_all(crowd: list[SmallClient], seconds: float, waiting: set[int]) -> None:
    """Let each of them ask again as soon as it is answered; `waiting` are those that wait."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for number, client in enumerate(crowd):
            if number in waiting and not client.chunks.empty():
                client.take()
                waiting.discard(number)
            if number not in waiting:
                episode = f'{client.ask.client_id}-episode'
                client.send(wire_observation.encode(client.observation(episode_id=episode)))
                waiting.add(number)
        time.sleep(0.005)


def end_in_order(processes: NodeProcesses) -> None:
    """End robots before the router, and that before the server, so that each tells its end."""
    for name in (*ROBOTS, 'router', 'server'):
        process = processes.processes[name]
        process.terminate()
        process.wait(20)


if __name__ == '__main__':
    raise SystemExit(main(Path(sys.argv[1])))
