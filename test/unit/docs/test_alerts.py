# SPDX-License-Identifier: Apache-2.0
"""
Each alert fires on series as nodes serve them, whatever their job, and on nothing else: Prometheus
itself evaluates the rules. test/ros/docs/test_dashboards.py compares names and labels with nodes.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support.paths import REPOSITORY
import yaml

FOLDER = REPOSITORY / 'config' / 'prometheus'
RULES = FOLDER / 'alerts.yaml'
PROMTOOL = shutil.which('promtool')
EVERY, LATER = '1m', '30m'
NEVER, ALWAYS, RISES = '0x40', '1x40', '0+60x40'
# of a fleet that is well
WELL = {
    'lerobot_serve_edge_cage_latched': NEVER,
    'lerobot_serve_edge_connection_state{state="dead"}': NEVER,
    'lerobot_serve_edge_connection_state{state="reconnecting"}': NEVER,
    'lerobot_serve_edge_stalls_total': NEVER,
    'lerobot_serve_edge_cage_trips_total': NEVER,
    'lerobot_serve_edge_actions_executed_total': '0+600x40',
    'lerobot_serve_edge_control_steps_missed_total': NEVER,
    'lerobot_serve_edge_control_steps_total': '0+600x40',
    'lerobot_serve_router_slot_healthy{slot="a"}': ALWAYS,
    'lerobot_serve_router_replica_ready{slot="a",replica="/a"}': ALWAYS,
    'lerobot_serve_router_requests_failed_total{slot="a",reason="timeout"}': NEVER,
    'lerobot_serve_router_requests_total{slot="a"}': '0+600x40',
    'lerobot_serve_router_canary_state{state="rolled_back"}': NEVER,
    'lerobot_serve_router_sessions': NEVER,
    'lerobot_serve_router_decisions_durable': ALWAYS,
    'lerobot_serve_router_dropped_total{reason="state_abandoned"}': NEVER,
    'lerobot_serve_router_dropped_total{reason="trace_overflow"}': NEVER,
    'lerobot_serve_router_shared_state_up': ALWAYS,
    'lerobot_serve_router_leads_rollout{namespace="north",pod="r1"}': ALWAYS,
    'lerobot_serve_router_leads_rollout{namespace="north",pod="r2"}': NEVER,
    'lerobot_serve_server_max_sessions': '8x40',
    'lerobot_serve_server_sessions': '7x40',
    'lerobot_serve_server_load_ratio': '0.5x40',
    'lerobot_serve_server_queue_wait_seconds_bucket{le="0.1"}': RISES,
    'lerobot_serve_server_queue_wait_seconds_bucket{le="1"}': RISES,
    'lerobot_serve_server_queue_wait_seconds_bucket{le="+Inf"}': RISES,
    # 1970 and 15 days; the alert is asked for at 1970 and half an hour
    'lerobot_serve_keys_expire_timestamp_seconds': '1296000x40',
    'up{job="router",instance="10.0.0.1:9464"}': ALWAYS,
    'up{job="node-exporter",instance="10.0.0.1:9100"}': NEVER,
}
# alert -> what differs from that, None for a series that ends
ILL: dict[str, dict[str, str | None]] = {
    'RobotStopped': {'lerobot_serve_edge_cage_latched': ALWAYS},
    'RobotDead': {'lerobot_serve_edge_connection_state{state="dead"}': ALWAYS},
    'RobotWithoutServer': {'lerobot_serve_edge_connection_state{state="reconnecting"}': ALWAYS},
    'RobotStalls': {'lerobot_serve_edge_stalls_total': '0+6x40'},
    'CageTrips': {'lerobot_serve_edge_cage_trips_total': RISES},
    'ControlStepsMissed': {'lerobot_serve_edge_control_steps_missed_total': RISES},
    'SlotDown': {'lerobot_serve_router_slot_healthy{slot="a"}': NEVER},
    'ReplicaDown': {'lerobot_serve_router_replica_ready{slot="a",replica="/a"}': NEVER},
    'RequestsFail': {
        'lerobot_serve_router_requests_failed_total{slot="a",reason="timeout"}': RISES
    },
    'CanaryRolledBack': {'lerobot_serve_router_canary_state{state="rolled_back"}': ALWAYS},
    'RouterGone': {'lerobot_serve_router_sessions': None},
    'DecisionsNotDurable': {'lerobot_serve_router_decisions_durable': NEVER},
    # once, not for as long as it lasts
    'DecisionsLost': {'lerobot_serve_router_dropped_total{reason="state_abandoned"}': '0x25 1x15'},
    'SharedStateAway': {'lerobot_serve_router_shared_state_up': NEVER},
    'SiteWithoutLeader': {'lerobot_serve_router_leads_rollout{namespace="north",pod="r1"}': NEVER},
    'ServersGone': {'lerobot_serve_server_max_sessions': None},
    'ServerSaturated': {'lerobot_serve_server_load_ratio': '0.95x40'},
    'ServerFull': {'lerobot_serve_server_sessions': '8x40'},
    'QueueWait': {'lerobot_serve_server_queue_wait_seconds_bucket{le="0.1"}': NEVER},
    'TraceLost': {'lerobot_serve_router_dropped_total{reason="trace_overflow"}': RISES},
    'KeysExpire': {'lerobot_serve_keys_expire_timestamp_seconds': '1209600x40'},
    'NodeGone': {'up{job="router",instance="10.0.0.1:9464"}': NEVER},
}


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())['groups']
    return {rule['alert'] for group in groups for rule in group['rules']}


def firing_case(changes: dict[str, str | None], firing: list[str]) -> dict[str, object]:
    """Return a test of promtool: with these changes exactly these alerts fire."""
    series = {name: values for name, values in (WELL | changes).items() if values}
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{'labels': f'{{alertname="{name}"}}', 'value': 1} for name in firing]
    return {
        'interval': EVERY,
        'input_series': [{'series': n, 'values': v} for n, v in series.items()],
        'promql_expr_test': [{'expr': query, 'eval_time': LATER, 'exp_samples': samples}],
    }


def run(*words: object) -> None:
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case():
    assert alerts() == set(ILL)


@pytest.mark.skipif(not PROMTOOL, reason='promtool is not installed (package prometheus)')
def test_each_alert_fires_alone_and_none_in_a_fleet_that_is_well(tmp_path):
    cases = [firing_case({}, []), *(firing_case(ILL[name], [name]) for name in sorted(ILL))]
    file = tmp_path / 'cases.yaml'
    content = {'rule_files': [str(RULES)], 'evaluation_interval': EVERY, 'tests': cases}
    file.write_text(yaml.safe_dump(content))
    run('test', 'rules', file)


@pytest.mark.skipif(not PROMTOOL, reason='promtool is not installed (package prometheus)')
@pytest.mark.parametrize('name', ['prometheus', 'kubernetes'])
def test_prometheus_reads_the_configuration(tmp_path, name):
    content = yaml.safe_load((FOLDER / f'{name}.yaml').read_text())
    for each in content['scrape_configs']:
        # Debian builds Prometheus without it
        each.pop('kubernetes_sd_configs', None)
    (tmp_path / 'alerts.yaml').write_text(RULES.read_text())
    (tmp_path / 'file.yaml').write_text(yaml.safe_dump(content))
    run('check', 'config', tmp_path / 'file.yaml')
