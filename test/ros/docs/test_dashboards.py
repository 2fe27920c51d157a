# SPDX-License-Identifier: Apache-2.0
"""Alerts and dashboard: every figure that they ask for is served by a real node."""

from __future__ import annotations

import json
from pathlib import Path
import re
import socket
from types import SimpleNamespace
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
import pytest
from support.zenoh.access_rig import Keys
import yaml

from lerobot_serve.contract.records import CanaryState
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.router.monitoring.metrics import shared_state_metrics
from lerobot_serve.telemetry.metric_families import keys_expiry

ASKED = re.compile(r'(lerobot_serve_([a-z]+)_\w+)(?:\{([^}]*)\})?')
SUFFIXES = {'counter': ('_total',), 'histogram': ('_bucket', '_sum', '_count')}
CHOICES = {
    'lerobot_serve_edge_connection_state': {state.name.lower() for state in ConnectionState},
    'lerobot_serve_router_canary_state': {state.word for state in CanaryState.State},
}


def free_ports(count: int) -> list[int]:
    holders = [socket.socket() for _ in range(count)]
    for holder in holders:
        holder.bind(('127.0.0.1', 0))
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def expressions(repository: Path) -> list[str]:
    """Return what the alerts and every panel ask for."""
    alerts = yaml.safe_load((repository / 'config' / 'prometheus' / 'alerts.yaml').read_text())
    found = [rule['expr'] for group in alerts['groups'] for rule in group['rules']]
    board = json.loads((repository / 'config' / 'grafana' / 'lerobot_serve.json').read_text())
    for panel in board['panels']:
        found += [target['expr'] for target in panel.get('targets', ())]
    return found


def asked(repository: Path) -> set[tuple[str, str, str]]:
    """
    Return the kind of node, the name and the labels of every figure that is asked for: no job,
    which each configuration of Prometheus names as it likes.
    """
    found = set()
    for expression in expressions(repository):
        for name, kind, labels in ASKED.findall(expression):
            given = dict(re.findall(r'(\w+)=~?"([^"]*)"', labels))
            found.add((kind, name, json.dumps(given, sort_keys=True)))
    return found


def served(port: int) -> dict[str, list[dict[str, str]]]:
    """Return the labels of every series, by name."""
    with urlopen(f'http://127.0.0.1:{port}/metrics', timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found: dict[str, list[dict[str, str]]] = {}
    for family in families:
        # a family without series yet has its names all the same
        for suffix in SUFFIXES.get(family.type, ('',)):
            found.setdefault(family.name + suffix, [])
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.fixture
def figures(router_rig, sim_arm_yaml, tmp_path) -> dict[str, dict[str, list[dict[str, str]]]]:
    """Return what each kind of node serves, and a router with a shared state beside it."""
    ports = dict(zip(('router', 'server', 'edge'), free_ports(3), strict=True))
    router_rig.server('a', 'a', metrics_port=ports['server'])
    router_rig.server('b', 'b')
    router_rig.router(slot_a=['a'], slot_b=['b'], metrics_port=ports['router'])
    router_rig.fleet.start(
        'edge',
        'edge_controller',
        namespace='/robot_1',
        robot_file=sim_arm_yaml,
        metrics_port=ports['edge'],
    )
    router_rig.wait_for_health('healthy')
    router_rig.wait(lambda: is_served(ports['edge']), 'the figures of the edge')
    found = {kind: served(port) for kind, port in ports.items()}
    shared = shared_state_metrics(SimpleNamespace(routers=2, leads=True, is_away=False))
    found['router'] |= {family.name: [{}] for family in shared}
    # of every kind of node that has keys
    found['keys'] = {keys_expiry(str(Keys(tmp_path / 'keys').add('robot', 'r'))).name: [{}]}
    return found


def is_served(port: int) -> bool:
    try:
        return bool(served(port))
    except OSError:
        return False


def test_every_figure_that_is_asked_for_is_served(repository, figures):
    wanted = asked(repository)
    assert len(wanted) > 20
    for kind, name, labels in wanted:
        assert name in figures[kind], f'{name} is not served'
        series = figures[kind][name]
        known = {key for each in series for key in each}
        for key, value in json.loads(labels).items():
            # a series that has not begun has no labels yet
            assert key in known or not series, f'{name} has no label {key}'
            assert name not in CHOICES or value in CHOICES[name], f'{name}: {key} {value}'


def test_the_alerts_are_described(repository):
    page = (repository / 'docs' / 'metrics.md').read_text()
    alerts = yaml.safe_load((repository / 'config' / 'prometheus' / 'alerts.yaml').read_text())
    for group in alerts['groups']:
        for rule in group['rules']:
            assert f'`{rule["alert"]}`' in page
            assert set(rule['annotations']) == {'summary', 'description'}
            assert rule['labels']['severity'] in ('page', 'warning')


def test_the_jobs_of_the_example_are_those_of_the_alert(repository):
    config = yaml.safe_load((repository / 'config' / 'prometheus' / 'prometheus.yaml').read_text())
    (jobs,) = {
        jobs for text in expressions(repository) for jobs in re.findall(r'job=~"(.*)"', text)
    }
    assert {each['job_name'] for each in config['scrape_configs']} == {*jobs.split('|')}
