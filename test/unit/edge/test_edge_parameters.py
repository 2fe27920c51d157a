# SPDX-License-Identifier: Apache-2.0
"""The parameters of edge_controller: defaults, and what contradicts itself."""

from __future__ import annotations

import re

import pytest
from support.refusals import refused

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.queue.delay_rules import DELAY_RULES
from lerobot_serve.parameters import build_parameters, parameter_specs, ParameterError

LIVE = {'request_threshold_s', 'degraded_after_s', 'max_offline_s'}


def test_what_may_change_live():
    assert {spec.name for spec in parameter_specs(EdgeParameters) if spec.live} == LIVE


def test_the_defaults_are_the_safe_ones():
    defaults = EdgeParameters()
    assert (defaults.skip_rule, defaults.teardown, defaults.while_paused) == (
        'moving_time',
        'hold',
        'hold',
    )
    assert (defaults.fallback_ladder, defaults.rtc, defaults.interpolation_multiplier) == (
        (),
        False,
        1,
    )
    assert defaults.servers == ('/policy_server',)


def test_the_rules_of_delay_are_those_there_are():
    spec = next(spec for spec in parameter_specs(EdgeParameters) if spec.name == 'skip_rule')
    assert spec.choices == tuple(DELAY_RULES)


CONTRADICTIONS = [
    ({'tags': ['night']},),
    ({'tags': ['=night']},),
    ({'tags': ['shift=a\nb']},),
    ({'tags': ['a=b'] * 17},),
    ({'servers': []},),
    ({'servers': ['policy_server']},),
    ({'servers': ['/a', '']},),
    ({'servers': ['/a', '/b', '/a']},),
    ({'servers': ['/a', 'ros:/a']},),
    ({'servers': ['ros:a']},),
    ({'servers': ['ros:zenoh:/a']},),
    ({'servers': '/a'},),
    ({'request_threshold_s': 3},),
    ({'max_action_age_s': 0.4},),
    ({'resume_threshold_s': 3},),
    ({'reconnect_max_backoff_s': 0.4},),
    ({'max_offline_s': 10},),
    ({'degraded_after_s': 0.5},),
    ({'network_profile': 'wan', 'degraded_after_s': 1.5},),
    ({'merge_mode': 'append', 'skip_rule': 'lerobot'},),
    ({'execution_horizon': 10},),
    ({'stop_service': '/stop'},),
    ({'stop_service': 'stop', 'teardown': 'safe_pose'},),
    ({'teardown': 'stop_service'},),
    ({'fallback_ladder': ['stop_service']},),
    ({'skip_rule': 'min'},),
    ({'teardown': 'park'},),
    ({'while_paused': 'play'},),
    ({'server': '/policy_server'},),
    ({'task': 'ä' * 2049},),
]


@pytest.mark.golden
def test_what_contradicts_itself_is_refused(golden):
    said = refused(
        CONTRADICTIONS, lambda values: build_parameters(EdgeParameters, values), ParameterError
    )
    golden.holds('refusals/edge_parameters.txt', said)


@pytest.mark.parametrize(
    'values',
    [
        {'servers': ['/site/policy_router', '/policy_server']},
        {'rtc': True, 'execution_horizon': 10},
        {'merge_mode': 'append', 'rtc': True, 'skip_rule': 'lerobot'},
        {'merge_mode': 'replace', 'skip_rule': 'lerobot'},
        {'request_threshold_s': 0.1},
        {'stop_service': '/arm/stop', 'fallback_ladder': ['ramp 0.5', 'stop_service']},
        {'stop_service': '/arm/stop', 'teardown': 'stop_service'},
        {'stop_service': '/arm/stop', 'teardown': 'safe_pose'},
        {'teardown': 'safe_pose'},
        {'reconnect_initial_backoff_s': 10, 'reconnect_max_backoff_s': 10},
        {
            'resume_threshold_s': 0,
            'latch_after_trips': 5,
            'interpolation_multiplier': 4,
            'downscale': True,
        },
    ],
)
def test_what_fits_together_is_taken(values):
    built = build_parameters(EdgeParameters, values)
    for name, value in values.items():
        assert getattr(built, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize('spec', parameter_specs(EdgeParameters), ids=lambda spec: spec.name)
def test_a_text_says_what_the_choices_are_for(spec):
    for choice in spec.choices if spec.name != 'network_profile' else ():
        assert re.search(rf'\b{choice[:4]}', spec.text), choice


@pytest.mark.parametrize(
    ('link', 'server', 'is_over_zenoh', 'name'),
    [
        ('ros', '/site', False, '/site'),
        ('ros', 'ros:/site', False, '/site'),
        ('ros', 'zenoh:/site', True, 'zenoh:/site'),
        ('zenoh', '/site', True, '/site'),
        ('zenoh', 'ros:/site', False, '/site'),
        ('zenoh', 'zenoh:/site', True, 'zenoh:/site'),
    ],
)
def test_the_link_of_a_server_is_its_own_or_that_of_all(link, server, is_over_zenoh, name):
    values = {'link': link, 'servers': [server, 'zenoh:/other'], 'zenoh_connect': ['tcp/h:1']}
    built = build_parameters(EdgeParameters, values)
    assert built.server_names == (name, 'zenoh:/other')
    assert built.servers_over_zenoh == (*([server] if is_over_zenoh else []), 'zenoh:/other')
    assert built.servers_over_ros == (() if is_over_zenoh else (name,))
