# SPDX-License-Identifier: Apache-2.0
"""The parameters of edge_controller: defaults, profiles, and what contradicts itself."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.refusals import refused

from lerobot_serve.edge.action_queue import DELAY_RULES
from lerobot_serve.edge.network_profiles import (
    DEFAULT_PROFILE,
    PROFILE_ROWS,
    PROFILES,
    profiles_table,
    with_profile,
)
from lerobot_serve.edge.parameters import EdgeParameters
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


SPECS = {spec.name: spec for spec in parameter_specs(EdgeParameters)}
SET = [row.parameter for row in PROFILE_ROWS]


def test_there_are_three_and_the_default_is_one_of_them():
    assert tuple(PROFILES) == SPECS['network_profile'].choices == ('wired', 'wifi', 'wan')
    assert SPECS['network_profile'].default == DEFAULT_PROFILE == 'wifi'


def test_the_default_profile_is_the_defaults():
    assert PROFILES[DEFAULT_PROFILE] == {name: SPECS[name].default for name in SET}
    assert build_parameters(EdgeParameters, with_profile({})) == EdgeParameters()


def test_the_default_numbers_are_those_agreed_on():
    assert PROFILES['wifi'] == {
        'request_threshold_s': 0.5,
        'request_timeout_s': 5.0,
        'degraded_after_s': 0.35,
        'max_action_age_s': 3.0,
        'jpeg_quality': 90,
        'downscale': False,
        'max_offline_s': 60.0,
        'reconnect_initial_backoff_s': 0.5,
        'reconnect_max_backoff_s': 10.0,
    }


@pytest.mark.parametrize('name', PROFILES)
def test_a_profile_is_what_the_node_runs_with(name):
    built = build_parameters(EdgeParameters, with_profile({'network_profile': name}))
    assert built.network_profile == name
    assert {parameter: getattr(built, parameter) for parameter in SET} == PROFILES[name]


@pytest.mark.parametrize('name', PROFILES)
@pytest.mark.parametrize('parameter', SET)
def test_what_is_given_stands_above_the_profile(name, parameter):
    # even when it is the default
    given_value = SPECS[parameter].default
    values = with_profile({'network_profile': name, parameter: given_value})
    assert values[parameter] == given_value
    # a shorter buffer brings the alarm with it
    apart = {parameter, *(['degraded_after_s'] if parameter == 'request_threshold_s' else [])}
    assert {k: v for k, v in values.items() if k not in (*apart, 'network_profile')} == {
        k: v for k, v in PROFILES[name].items() if k not in apart
    }


@pytest.mark.parametrize('row', PROFILE_ROWS, ids=lambda row: row.parameter)
def test_a_slower_network_is_never_given_less_time_and_each_number_has_its_reason(row):
    numbers = [row.wired, row.wifi, row.wan]
    assert numbers == sorted(numbers, reverse=row.parameter == 'jpeg_quality')
    assert row.wired != row.wan
    assert len(row.reason) > 20
    assert '|' not in row.reason


def test_a_wan_gets_small_images():
    built = build_parameters(EdgeParameters, with_profile({'network_profile': 'wan'}))
    assert (built.downscale, built.jpeg_quality) == (True, 80)
    assert not EdgeParameters().downscale


def test_each_row_is_there_once_and_is_a_parameter():
    assert len(set(SET)) == len(SET)
    assert set(SET) <= set(SPECS)


@pytest.mark.parametrize('wrong', ['lan', '', 3, None, ['wired'], {}, True])
def test_a_profile_that_does_not_exist_is_refused_by_its_check(wrong):
    values = with_profile({'network_profile': wrong})
    assert values == {'network_profile': wrong}
    with pytest.raises(ParameterError, match='profile must be'):
        build_parameters(EdgeParameters, values)


@given(
    st.dictionaries(st.sampled_from([*SET, 'network_profile', 'task', 'unknown']), st.integers())
)
def test_what_is_given_is_never_changed(values):
    before = dict(values)
    after = with_profile(values)
    assert values == before
    assert {name: after[name] for name in values} == values


def test_the_table_shows_every_number_and_reason():
    lines = profiles_table().splitlines()[2:]
    assert len(lines) == len(PROFILE_ROWS)
    for line, row in zip(lines, PROFILE_ROWS, strict=True):
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        assert cells[0] == f'`{row.parameter}`'
        assert [json.loads(cell) for cell in cells[1:4]] == [row.wired, row.wifi, row.wan]
        assert cells[4] == row.reason
