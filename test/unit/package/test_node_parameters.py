# SPDX-License-Identifier: Apache-2.0
"""The parameters of the nodes: bounded, with their units, and free of contradictions."""

from __future__ import annotations

import re

import pytest

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import (
    build_parameters,
    markdown_table,
    parameter_specs,
    ParameterError,
    with_changes,
)
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters

NODES = (ServerParameters, EdgeParameters, GatewayParameters, LearnerParameters)
NODES = (*NODES, RouterParameters, SimParameters)
ENDINGS = {'s': ('_s',), 'ms': ('_ms',), 'Hz': ('_hz',), '%': ('_percent',)}
ENDINGS['h'] = ('_hours',)
ENDINGS['m'] = ('_m',)
ENDINGS['rad'] = ('_rad',)
ENDINGS['min'] = ('_minutes',)
ENDINGS['MB'] = ('_mb',)
ENDINGS['pixels'] = ('_height', '_width')


@pytest.mark.parametrize('parameters', NODES)
def test_the_defaults_of_a_node_are_allowed(parameters):
    defaults = {spec.name: spec.default for spec in parameter_specs(parameters)}
    assert build_parameters(parameters, defaults) == parameters()


@pytest.mark.parametrize('parameters', NODES)
def test_every_parameter_has_a_text_and_numbers_are_bounded(parameters):
    for spec in parameter_specs(parameters):
        assert len(spec.text) > 10, spec.name
        assert spec.kind not in (int, float) or spec.low is not None, spec.name


@pytest.mark.parametrize('parameters', NODES)
def test_the_unit_is_in_the_name(parameters):
    for spec in parameter_specs(parameters):
        if spec.unit:
            assert spec.name.endswith(ENDINGS[spec.unit]), spec.name
        endings = [unit for unit, ends in ENDINGS.items() if spec.name.endswith(ends)]
        if spec.kind is not bool:
            assert endings == ([spec.unit] if spec.unit else []), spec.name


@pytest.mark.parametrize('parameters', NODES)
def test_the_unit_is_not_in_the_text_too(parameters):
    for spec in parameter_specs(parameters):
        assert not spec.unit or not re.search(rf'\d {spec.unit}\b', spec.text), spec.name


@pytest.mark.parametrize('parameters', NODES)
def test_the_table_has_every_parameter(parameters):
    rows = markdown_table(parameters).splitlines()
    assert len(rows) == 2 + len(parameter_specs(parameters))
    for row, spec in zip(rows[2:], parameter_specs(parameters), strict=True):
        assert row.startswith(f'| `{spec.name}` | ')
        assert row.endswith(f' | {spec.text} |')
        assert row.count('|') == 8


@pytest.mark.parametrize(
    ('parameters', 'values', 'text'),
    [
        (ServerParameters, {'pin_task': True}, 'pin_task needs a default_task'),
        (ServerParameters, {'session_grace_s': 61}, r'session_grace_s must be at most .* \(60\)'),
        (
            EdgeParameters,
            {'request_threshold_s': 3},
            r'request_threshold_s must be below .* \(3\), got 3',
        ),
        (
            RouterParameters,
            {'slot_b': ['slot_a/policy_server']},
            'in slot_b and in slot_a',
        ),
        (GatewayParameters, {'doors': ['htp']}, "doors: 'htp' is not one of .*did you mean http"),
        (GatewayParameters, {'doors': []}, 'doors is empty; name one or more of http, openpi'),
        (GatewayParameters, {'doors': ['http', 'http']}, 'names a door twice'),
        (
            GatewayParameters,
            {'groot.port': 9000},
            'groot.port is set, and doors does not name groot; add groot to doors',
        ),
        (GatewayParameters, {'server': 'router'}, "full name of a node, .* got 'router'"),
        (LearnerParameters, {'trainer': 'bultin'}, "full path of a trainer file, got 'bultin'"),
        (LearnerParameters, {'folder': 'here'}, "folder must be a full path, got 'here'"),
        (LearnerParameters, {'episode_folders': ['bags']}, "be a full path, got 'bags'"),
        (
            LearnerParameters,
            {'episode_filters': ['succes']},
            "'succes' is not one of .*did you mean success",
        ),
        (LearnerParameters, {'sources': ['ftp://a']}, "sources must be .*, got 'ftp://a'"),
        (LearnerParameters, {'sources': ['/a'] * 8}, 'at most 7 addresses, got 8'),
        (LearnerParameters, {'router': 'router'}, "router must be .*, got 'router'"),
        (GatewayParameters, {'link': 'zenoh'}, 'reached over Zenoh; set zenoh_connect'),
        (GatewayParameters, {'zenoh_keys': '/k'}, 'not reached over Zenoh; set link to zenoh'),
        (SimParameters, {'outcome_topic': 'outcome'}, "full name of a topic .*, got 'outcome'"),
    ],
)
def test_a_node_refuses_values_that_contradict_each_other(parameters, values, text):
    with pytest.raises(ParameterError, match=text):
        build_parameters(parameters, values)


LIVE = {
    'scheduler': 'dynamic_batching',
    'max_batch_size': 3,
    'max_batch_delay_ms': 1.0,
    'admission': 'auto',
    'max_sessions': 3,
    'max_sessions_per_process': 2,
    'max_waiting_goals': 3,
    'quotas': ('robot *: 10 requests/s',),
    'quota_burst_s': 1.0,
    'network_round_trip_ms': 1.0,
    'session_grace_s': 1.0,
    'session_idle_s': 99.0,
    'drain_timeout_s': 1.0,
}
# what a run of the process has one of: its name, its port, its trace
OF_THE_RUN = ('local', 'metrics_', 'trace_', 'capture_', 'max_capture_', 'zenoh_')
AT_START = {'autostart', 'policy_root', 'slot', 'status_period_s'} | {
    spec.name for spec in parameter_specs(ServerParameters) if spec.name.startswith(OF_THE_RUN)
}


def test_a_policy_server_that_runs_takes_what_touches_no_policy_and_no_open_session():
    assert {spec.name for spec in parameter_specs(ServerParameters) if spec.live} == set(LIVE)
    assert with_changes(ServerParameters(), LIVE) == build_parameters(ServerParameters, LIVE)


@pytest.mark.parametrize('spec', parameter_specs(ServerParameters), ids=lambda spec: spec.name)
def test_what_a_policy_was_loaded_with_changes_only_while_there_is_none(spec):
    assert spec.on_configure == (spec.name not in LIVE and spec.name not in AT_START)
    other = {bool: not spec.default, str: f'{spec.default}x', tuple: ('other',)}
    value = spec.choices[-1] if spec.choices else other.get(spec.kind, spec.high)
    if spec.on_configure:
        words = f'{spec.name} is .* while the node is configured; .* clean up the node'
        with pytest.raises(ParameterError, match=words):
            with_changes(ServerParameters(), {spec.name: value})
        values = {spec.name: value, 'default_task': 'one'}
        after = with_changes(ServerParameters(), values, unconfigured=True)
        assert getattr(after, spec.field) == values[spec.name]
