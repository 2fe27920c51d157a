# SPDX-License-Identifier: Apache-2.0
"""
The pods of config/kubernetes run with exactly their arguments, variables and files, each in a
network of its own, without a cluster: they find each other by name, pass their probes, write only
into their volumes, serve a robot and a client, and end within their grace period.
"""

from __future__ import annotations

from collections.abc import Iterator
import sys

import pytest
from support.containers.cluster import Cluster, running_cluster
from support.containers.manifests import pods, rendered
from support.network.edge_watch import __name__ as EDGE_WATCH
from support.network.machines import Machines, NetworkUnavailable
from support.network.watched_edge import WatchedEdge
from support.paths import module_environment
from support.waiting import wait_until

from lerobot_serve.tools.processes.node_processes import executable_path

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(300)]

ROBOT = 'robot'
TOKEN = 'a-token-of-a-test'
SERVERS = ('policy-server-a-0', 'policy-server-a-1', 'policy-server-b-0')
PODS = (*SERVERS, 'policy-router-0', 'gateway-0')
LIMIT_S = 90.0


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[tuple[Cluster, Machines, dict[str, str]]]:
    """The pods of the base, started, and a machine beside them."""
    monkeypatch.setenv('PYTHONPATH', module_environment()['PYTHONPATH'])
    documents = rendered('base')
    found = {pod.name: pod for pod in pods(documents) if pod.name in PODS}
    assert set(found) == set(PODS)
    try:
        with running_cluster(documents, found, (ROBOT,), tmp_path) as (made, machines, addresses):
            made.put_secret('gateway-tokens/tokens', f'anna {TOKEN}\n')
            for name in found:
                made.start(name)
            yield made, machines, addresses
    except NetworkUnavailable as reason:
        pytest.skip(str(reason))
    finally:
        for log in sorted(tmp_path.glob('*.log')):
            print(f'--- {log.name}\n{log.read_text()[-3000:]}')


def test_the_pods_serve_a_robot_and_end_in_time(cluster):
    made, machines, addresses = cluster
    for name in PODS:
        for probe in ('startupProbe', 'livenessProbe', 'readinessProbe'):
            wait_until(
                lambda name=name, probe=probe: made.probe(ROBOT, name, probe).status == 200,
                f'{probe} of {name}',
                LIMIT_S,
            )
    # a caller without a token is none; the page of the gateway needs none
    assert made.ask(ROBOT, 'gateway-0', 8700, '/health').status == 200
    assert made.ask(ROBOT, 'gateway-0', 8700, '/config').status == 401

    endpoint = f'tcp/{addresses["policy-router-0"]}:7447'
    machines.start(
        'sim_robot',
        ROBOT,
        [str(executable_path('sim_robot')), '--ros-args', '-r', '__ns:=/robot_1'],
    )
    edge = ['--ros-args', '-r', '__ns:=/robot_1', '-p', "servers:=['/policy_router']"]
    edge += ['-p', "task:='reach the target'", '-p', 'link:=zenoh']
    edge += ['-p', f"zenoh_connect:=['{endpoint}']"]
    machines.start('edge', ROBOT, [str(executable_path('edge_controller')), *edge])
    watch = WatchedEdge(
        machines.open(
            'watch', ROBOT, [sys.executable, '-m', EDGE_WATCH, '/robot_1/edge_controller']
        )
    )
    watch.wait_until_driven()

    # a node is emptied: one server of slot a goes, and the other one has its robots
    before = watch.ask()
    assert made.end('policy-server-a-0') < 30
    after = watch.wait_until_driven(120)
    assert after['stalls'] == before['stalls']
    for name in ('gateway-0', 'policy-router-0', 'policy-server-a-1', 'policy-server-b-0'):
        made.end(name)
