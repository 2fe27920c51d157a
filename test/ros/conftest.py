# SPDX-License-Identifier: Apache-2.0
"""Real nodes in real processes, and one node of our own that watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path

import pytest
from rclpy.node import Node
from support.nodes.edge_rig import EdgeRig
from support.nodes.router_rig import RouterRig
from support.nodes.server_rig import ServerRig
from support.nodes.steering import PLUGIN, Steering
from support.nodes.zenoh_links import (
    free_endpoint,
    PathProcesses,
    ZenohLinks,
    ZenohProcesses,
)
from support.processes.fork_server import ForkServer
from support.processes.forked import GOODBYE_MISSING
from support.waiting import wait_until

from benchmarks.harness.processes import node_processes, NodeProcesses, start_executable
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve_interfaces.msg import RouterState

NULL_POLICY = 'joints=6,chunk=30,cameras=,fps=30'


@pytest.fixture(scope='session')
def fork_server():
    """Starts executables of the package without importing their modules again."""
    server = ForkServer()
    yield server
    server.end()


@pytest.fixture
def endpoint() -> str:
    """A free TCP endpoint of Zenoh."""
    return free_endpoint()


@pytest.fixture
def link() -> str:
    """Between robots, router and servers; `both_links` and `every_link` run a test with each."""
    return os.environ.get('LINK', 'ros')


@pytest.fixture
def start_processes(fork_server, link, tmp_path):
    """Gives processes of an environment, ended when the `with` ends, with the link between."""

    @contextlib.contextmanager
    def start(environment: dict[str, str]) -> Iterator[NodeProcesses]:
        with contextlib.ExitStack() as stack:
            if link in ('ros_alone', 'local'):
                started = PathProcesses(tmp_path, environment, fork_server.start)
                started.uses_local = link == 'local'
                stack.callback(started.end)
                yield started
            elif link == 'ros':
                yield stack.enter_context(node_processes(tmp_path, environment, fork_server.start))
            else:
                started = ZenohProcesses(tmp_path, environment, fork_server.start)
                started.links = ZenohLinks()
                stack.callback(started.links.close)
                stack.callback(started.end)
                yield started

    return start


@pytest.fixture
def processes(fork_server, tmp_path):
    """Starts executables of the package; all are ended after the test."""
    yield from run_nodes(tmp_path, fork_server.start)


@pytest.fixture
def installed_processes(tmp_path):
    """Starts the executables as they are installed; all are ended after the test."""
    yield from run_nodes(tmp_path, start_executable)


def begin_and_end(log: str) -> str:
    """Return the part of a log that is shown: a fault often begins long before the failure."""
    return log if len(log) <= 6000 else f'{log[:3000]}\n[...]\n{log[-3000:]}'


def check_end(started: NodeProcesses, folder: Path) -> None:
    """Fail when a node ended without a goodbye; pytest shows what is printed below a failure."""
    print(f'--- exit statuses\n{started.ended()}')
    for log in sorted(folder.glob('*.log')):
        print(f'--- {log.name}\n{begin_and_end(log.read_text())}')
    assert GOODBYE_MISSING not in started.ended().values()


def run_nodes(folder: Path, start: Callable[..., object]) -> Iterator[NodeProcesses]:
    environment = {**os.environ, 'ROS_HOME': str(folder / 'ros')}
    with node_processes(folder, environment, start) as started:
        started.folder = folder
        yield started
    check_end(started, folder)


@pytest.fixture
def runtime():
    """Context, executor and threads for nodes of the test itself."""
    opened = NodeRuntime([])
    yield opened
    opened.close()


@pytest.fixture
def node(runtime) -> Node:
    """A node that spins in the background."""
    built = Node('test', context=runtime.context)
    runtime.add(built)
    runtime.spin_in_background()
    return built


@pytest.fixture(name='wait_until')
def wait_until_fixture():
    return wait_until


def log_of(started: NodeProcesses, name: str) -> str:
    """Return what a process has printed so far."""
    return (started.folder / f'{name}.log').read_text()


@pytest.fixture(name='log_of')
def log_of_fixture(processes) -> Callable[[str], str]:
    return lambda name: log_of(processes, name)


@pytest.fixture
def log_of_rig(rig, tmp_path) -> Callable[[str], str]:
    """Returns what a server of the rig has printed so far."""
    return lambda name: (tmp_path / f'{name}.log').read_text()


@pytest.fixture
def sim_arm_yaml(repository) -> Path:
    return repository / 'config' / 'robots' / 'sim_arm.yaml'


@pytest.fixture
def steering(tmp_path) -> Steering:
    """A folder through which a test steers a policy of the kind `steered`."""
    return Steering(tmp_path / 'steering')


@pytest.fixture
def rig(start_processes, node, tmp_path, steering):
    """A policy server, not started yet."""
    path = os.pathsep.join([str(PLUGIN), os.environ.get('PYTHONPATH', '')])
    environment = {**os.environ, 'PYTHONPATH': path}
    with start_processes(environment) as started:
        rigged = ServerRig(node, started, steering)
        yield rigged
        rigged.end()
        # a policy that waits for its turn could not end
        steering.open_gates()
    steering.end()
    check_end(started, tmp_path)


@pytest.fixture
def router_rig(start_processes, node, tmp_path):
    """A router, servers and robots; nothing is started yet."""
    path = os.pathsep.join([str(PLUGIN), os.environ.get('PYTHONPATH', '')])
    environment = {**os.environ, 'PYTHONPATH': path, 'ROS_HOME': str(tmp_path / 'ros')}
    with start_processes(environment) as started:
        rigged = RouterRig(node, started, tmp_path)
        yield rigged
        # below a failure, too
        print(f'--- the router, last\n{rigged.watch.last.get(RouterState)}')
        rigged.end()
    for steering in rigged.steerings.values():
        steering.end()
    check_end(started, tmp_path)


@pytest.fixture
def edge_rig(start_processes, node, tmp_path, steering):
    """An edge, the servers that a test gives it and the robot; nothing is started yet."""
    path = os.pathsep.join([str(PLUGIN), os.environ.get('PYTHONPATH', '')])
    environment = {**os.environ, 'PYTHONPATH': path}
    with start_processes(environment) as started:
        rigged = EdgeRig(node, started, tmp_path)
        yield rigged
        rigged.end()
        steering.open_gates()
    steering.end()
    check_end(started, tmp_path)
