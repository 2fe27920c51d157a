# SPDX-License-Identifier: Apache-2.0
"""
The pods of config/kubernetes run with exactly their arguments, variables and files, each in a
network of its own, without a cluster: they find each other by name, pass their probes, write only
into their volumes, serve a robot and a client, and end within their grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import sys

import psycopg
import pytest
from support.containers.cluster import addresses_of, Cluster, machine_of
from support.containers.manifests import pods, rendered
from support.network.edge_watch import __name__ as EDGE_WATCH
from support.network.machines import Machines, NetworkUnavailable, running_machines
from support.network.watched_edge import WatchedEdge
from support.paths import module_environment
from support.postgres.server import postgres_server, PostgresServer
from support.waiting import wait_until

from lerobot_serve.tools.keys.access import KeyRole
from lerobot_serve.tools.keys.site import make_site, opened_site
from lerobot_serve.tools.processes import executable_path

pytestmark = [pytest.mark.release, pytest.mark.limit_s(300)]

ROBOT, SITES = 'robot', ('north', 'south')
TOKEN = 'a-token-of-a-test'
SERVER, ROUTER = 'policy-server-a-0', 'policy-router-0'
SERVERS = (SERVER, 'policy-server-a-1', 'policy-server-b-0')
# of a site with a shared state
ROUTERS, DATABASE = ('policy-router-0', 'policy-router-1'), 'fleet-postgres'
GATEWAYS = ('gateway-0', 'gateway-1')
PODS = (*SERVERS, ROUTER, *GATEWAYS)
PROBES = ('startupProbe', 'livenessProbe', 'readinessProbe')
LIMIT_S = 90.0


@pytest.fixture
def network(tmp_path, monkeypatch) -> Iterator[Callable[[dict[str, str]], Machines]]:
    """Makes machines by their addresses."""
    monkeypatch.setenv('PYTHONPATH', module_environment()['PYTHONPATH'])
    with contextlib.ExitStack() as stack:

        def make(addresses: dict[str, str]) -> Machines:
            try:
                return stack.enter_context(running_machines(addresses, tmp_path))
            except NetworkUnavailable as reason:
                pytest.skip(str(reason))

        yield make
    for log in sorted(tmp_path.glob('*.log')):
        print(f'--- {log.name}\n{log.read_text()[-3000:]}')


def started_robot(machines: Machines, servers: str, *parameters: str) -> WatchedEdge:
    """Start a simulated robot and its edge controller over Zenoh; return how it is watched."""
    robot = ['--ros-args', '-r', '__ns:=/robot_1']
    machines.start('sim_robot', ROBOT, [str(executable_path('sim_robot')), *robot])
    settings = (f'servers:=[{servers}]', "task:='reach the target'", 'link:=zenoh', *parameters)
    edge = [*robot, *(word for setting in settings for word in ('-p', setting))]
    machines.start('edge', ROBOT, [str(executable_path('edge_controller')), *edge])
    watch = [sys.executable, '-m', EDGE_WATCH, '/robot_1/edge_controller']
    return WatchedEdge(machines.open('watch', ROBOT, watch))


def wait_until_probed(cluster: Cluster, names: tuple[str, ...]) -> None:
    for name in names:
        for probe in PROBES:
            wait_until(
                lambda name=name, probe=probe: cluster.probe(ROBOT, name, probe).status == 200,
                f'{probe} of {name}',
                LIMIT_S,
            )


def test_the_pods_serve_a_robot_and_end_in_time(network, tmp_path):
    documents = rendered('base')
    found = {pod.name: pod for pod in pods(documents) if pod.name in PODS}
    assert set(found) == set(PODS)
    addresses = addresses_of((*PODS, ROBOT))
    machines = network(addresses)
    cluster = Cluster(machines, addresses, documents, found, tmp_path)
    cluster.put_secret('gateway-tokens', {'tokens': f'anna {TOKEN}\n'})
    for name in found:
        cluster.start(name)
    wait_until_probed(cluster, PODS)
    for name in GATEWAYS:
        assert cluster.ask(ROBOT, name, 8700, '/health').status == 200
        # without a token
        assert cluster.ask(ROBOT, name, 8700, '/config').status == 401

    endpoint = f'tcp/{cluster.address(ROUTER)}:7447'
    watch = started_robot(machines, "'/policy_router'", f"zenoh_connect:=['{endpoint}']")
    watch.wait_until_driven()
    # a node is emptied: one server of slot a goes, and the other one has its robots
    before = watch.ask()
    cluster.end(SERVER)
    after = watch.wait_until_driven(120)
    assert after['stalls'] == before['stalls']
    for name in PODS:
        if name != SERVER:
            cluster.end(name)


def keys_of_sites(folder: Path, addresses: dict[str, str]) -> dict[str, Path]:
    """Make the keys of two sites and of a robot; return their folders by machine or pod."""
    # an authority outlives its keys, however long they take to make
    make_site(folder, 'fleet', 60)
    folders = {}
    with opened_site(folder) as site:
        host = SERVER + '.policy-server-a'
        server = site.add(KeyRole.SERVER, '/policy_server_a_0', 30, hosts=(host,), direct=False)
        folders[SERVER] = folder / server.folder
        for machine, name in (
            (machine_of(pod, name), f'/{name}/{node_name(pod)}')
            for name in SITES
            for pod in ROUTERS
        ):
            hosts = (addresses[machine],)
            router = site.add(KeyRole.ROUTER, name, 30, hosts=hosts, direct=False)
            folders[machine] = folder / router.folder
        folders[ROBOT] = (
            folder / site.add(KeyRole.ROBOT, 'robot_1', 30, hosts=(), direct=False).folder
        )
        site.write_access()
    return folders


def node_name(pod: str) -> str:
    return pod.replace('-', '_')


def files_in(folder: Path) -> dict[str, str]:
    """Return the files of a folder, as `kubectl create secret --from-file` takes them."""
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    """A stopped PostgreSQL with a database for routers that know the password."""
    with postgres_server() as server:
        with psycopg.connect(server.url('postgres'), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE fleet LOGIN PASSWORD '{TOKEN}'")
            connection.execute('CREATE DATABASE fleet OWNER fleet')
        server.stop()
        (server.data / 'pg_hba.conf').write_text('host fleet fleet all scram-sha-256\n')
        yield server


def test_a_robot_goes_on_at_the_other_router_and_site_over_encrypted_links(
    database, network, tmp_path
):
    names = (SERVER, *ROUTERS)
    addresses = addresses_of(
        (*(machine_of(pod, s) for s in SITES for pod in names), DATABASE, ROBOT)
    )
    machines = network(addresses)
    machines.start(DATABASE, DATABASE, database.command(addresses[DATABASE], 5432))
    keys = keys_of_sites(tmp_path / 'keys', addresses)
    clusters = {}
    for site in SITES:
        documents = rendered(f'overlays/two-sites/{site}')
        found = {pod.name: pod for pod in pods(documents) if pod.name in names}
        made = clusters[site] = Cluster(
            machines, addresses, documents, found, tmp_path, site, {DATABASE: addresses[DATABASE]}
        )
        made.put_secret(DATABASE, {'password': TOKEN})
        for name in ROUTERS:
            made.put_secret(f'keys-{name}', files_in(keys[machine_of(name, site)]))
        made.put_secret(f'keys-{SERVER}', files_in(keys[SERVER]))
        for name in found:
            made.start(name)
    for made in clusters.values():
        wait_until_probed(made, names)

    routers = [(site, name) for site in SITES for name in ROUTERS]
    endpoints = ', '.join(f"'tls/{clusters[s].address(name)}:7447'" for s, name in routers)
    watch = started_robot(
        machines,
        ', '.join(f"'/{site}/{node_name(name)}'" for site, name in routers),
        f'zenoh_connect:=[{endpoints}]',
        'zenoh_site:=fleet',
        f'zenoh_keys:={keys[ROBOT]}',
        'client_id:=robot_1',
    )
    driven = watch.wait_until_driven()
    assert driven['server'] == '/north/policy_router_0'
    after = {
        'policy-router-0': '/north/policy_router_1',
        'policy-router-1': '/south/policy_router_0',
    }
    for gone, server in after.items():
        clusters['north'].end(gone)
        watch.wait(lambda now, server=server: now['server'] == server, server)
        watch.wait_until_driven()
