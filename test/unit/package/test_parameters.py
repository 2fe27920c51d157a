# SPDX-License-Identifier: Apache-2.0
"""
Parameters: every value is checked, those of the nodes are bounded; a wrong one changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import (
    build_parameters,
    markdown_table,
    parameter,
    parameter_specs,
    ParameterError,
    with_changes,
)
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters


@dataclass(frozen=True, slots=True)
class Example:
    count: int = parameter(3, 'how many', low=1, high=9, live=True)
    at_most: int = parameter(3, 'not more than', high=9, live=True)
    any_number: int = parameter(0, 'any', live=True)
    wait_s: float = parameter(0.5, 'how long', unit='s', low=0.0, live=True)
    factor: float = parameter(1.0, 'by how much', live=True)
    fast: bool = parameter(False, 'whether', live=True)
    word: str = parameter('', 'any text', live=True)
    mode: str = parameter('slow', 'which', choices=('slow', 'fast'), live=True)
    names: tuple[str, ...] = parameter((), 'which ones', live=True)
    fixed: int = parameter(7, 'fixed at start')
    managed: str = parameter('old', 'in use while configured', on_configure=True)
    arm_speed: float = parameter(1.0, 'of the arm', low=0.0, live=True, name='arm.speed')
    arm_kind: str = parameter('old', 'of the arm, too', on_configure=True, name='arm.kind')

    def check(self) -> None:
        if self.fast and self.mode == 'slow':
            raise ParameterError('fast contradicts mode slow')


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('count', 1),
        ('count', 9),
        ('at_most', -(2**63)),
        ('any_number', 2**63),
        ('wait_s', 0.0),
        ('wait_s', 1e300),
        ('factor', -1e300),
        ('word', 'ü\n'),
        ('mode', 'fast'),
        ('names', ('a', 'b')),
    ],
)
def test_an_allowed_value_is_taken_as_it_is(name, value):
    assert getattr(build_parameters(Example, {name: value}), name) == value


@pytest.mark.parametrize(
    ('name', 'value', 'allowed'),
    [
        ('count', 0, 'in [1, 9]'),
        ('count', 10, 'in [1, 9]'),
        ('count', 3.0, 'an integer'),
        ('count', True, 'an integer'),
        ('count', '3', 'an integer'),
        ('count', None, 'an integer'),
        ('count', 10**400, 'in [1, 9]'),
        ('at_most', 10, 'at most 9'),
        ('wait_s', -0.1, 'at least 0'),
        ('wait_s', math.nan, 'at least 0'),
        ('wait_s', math.inf, 'at least 0'),
        ('wait_s', True, 'a double'),
        ('wait_s', 10**400, 'a double'),
        ('factor', math.nan, 'a finite double'),
        ('factor', -math.inf, 'a finite double'),
        ('fast', 1, 'a bool'),
        ('word', 1, 'a string'),
        ('mode', 'medium', 'one of slow, fast'),
        ('mode', '', 'one of slow, fast'),
        ('names', 'ab', 'a string array'),
        ('names', ('a', 1), 'a string array'),
    ],
)
def test_a_refusal_names_parameter_bound_and_value(name, value, allowed):
    with pytest.raises(ParameterError) as refused:
        build_parameters(Example, {name: value})
    assert str(refused.value).startswith(f'{name} must be {allowed}, got ')
    assert str(value) in str(refused.value)


def test_an_integer_stands_for_a_double():
    value = build_parameters(Example, {'wait_s': 2}).wait_s
    assert (value, type(value)) == (2.0, float)


def test_a_list_becomes_a_tuple():
    assert build_parameters(Example, {'names': ['a']}).names == ('a',)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        ParameterError,
        match=r'speed is not a parameter; did you mean arm.speed\? there are count, ',
    ):
        build_parameters(Example, {'speed': 1})


def test_a_parameter_goes_by_its_name_where_that_is_not_its_field():
    built = build_parameters(Example, {'arm.speed': 2, 'arm.kind': 'new'})
    assert (built.arm_speed, built.arm_kind) == (2.0, 'new')
    after = with_changes(built, {'arm.speed': 3.0})
    assert (after.arm_speed, after.arm_kind) == (3.0, 'new')
    with pytest.raises(ParameterError, match=r'^arm_speed is not a parameter; .*, arm\.speed, '):
        build_parameters(Example, {'arm_speed': 2.0})
    with pytest.raises(ParameterError, match=r'^arm\.speed must be at least 0, got -1\.0$'):
        build_parameters(Example, {'arm.speed': -1})
    with pytest.raises(ParameterError, match=r"^arm\.kind is 'new' while the node is "):
        with_changes(built, {'arm.kind': 'other'})


def test_a_class_that_extends_another_has_the_parameters_of_both():
    @dataclass(frozen=True, slots=True)
    class Larger(Example):
        leg_speed: float = parameter(1.0, 'of the leg', live=True, name='leg.speed')

    assert [spec.name for spec in parameter_specs(Larger)] == [*NAMES, 'leg.speed']
    assert with_changes(build_parameters(Larger, {'fixed': 8}), {'leg.speed': 2.0}) == Larger(
        fixed=8, leg_speed=2.0
    )


def test_a_parameter_needs_a_default():
    @dataclass(frozen=True)
    class Bare:
        count: int

    with pytest.raises(TypeError, match='count: every parameter needs a default'):
        parameter_specs(Bare)


def test_rules_between_parameters_are_checked_at_start_and_at_a_change():
    with pytest.raises(ParameterError, match='fast contradicts mode slow'):
        build_parameters(Example, {'fast': True})
    current = build_parameters(Example, {'fast': True, 'mode': 'fast'})
    with pytest.raises(ParameterError, match='fast contradicts mode slow'):
        with_changes(current, {'mode': 'slow'})
    assert with_changes(current, {'mode': 'slow', 'fast': False}).mode == 'slow'


def test_a_parameter_that_is_not_live_is_fixed():
    current = build_parameters(Example, {'fixed': 8})
    with pytest.raises(ParameterError, match=r'fixed is fixed at start \(8\)'):
        with_changes(current, {'fixed': 7})
    assert with_changes(current, {'fixed': 8, 'count': 4}) == build_parameters(
        Example, {'fixed': 8, 'count': 4}
    )
    with pytest.raises(ParameterError, match='fixed must be an integer'):
        with_changes(current, {'fixed': '8'})


def test_a_parameter_in_use_says_how_to_change_it():
    current = build_parameters(Example, {'managed': 'here'})
    with pytest.raises(ParameterError) as refused:
        with_changes(current, {'managed': 'there'})
    assert str(refused.value) == (
        "managed is 'here' while the node is configured; deactivate and clean up the node, set "
        'the parameter, then configure and activate the node'
    )
    assert with_changes(current, {'managed': 'here', 'count': 4}).count == 4
    with pytest.raises(ParameterError, match='managed must be a string'):
        with_changes(current, {'managed': 1})


def test_a_parameter_that_is_not_in_use_may_change():
    current = build_parameters(Example, {'managed': 'here'})
    after = with_changes(current, {'managed': 'there', 'count': 4}, unconfigured=True)
    assert (after.managed, after.count, current.managed) == ('there', 4, 'here')
    with pytest.raises(ParameterError, match='managed must be a string'):
        with_changes(current, {'managed': 1}, unconfigured=True)
    with pytest.raises(ParameterError, match=r'fixed is fixed at start \(7\)'):
        with_changes(current, {'fixed': 8}, unconfigured=True)


def test_the_table_says_when_a_parameter_may_change():
    told = {
        row.split(' | ')[0].strip('| `'): row.split(' | ')[5]
        for row in markdown_table(Example).splitlines()[2:]
    }
    assert told['count'] == 'live'
    assert told['fixed'] == 'at start'
    assert told['managed'] == 'when unconfigured'
    assert told['arm.kind'] == 'when unconfigured'


NAMES = [spec.name for spec in parameter_specs(Example)]
anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())
)
changes = st.dictionaries(st.sampled_from([*NAMES, 'arm_speed', 'unknown']), anything, max_size=4)


def by_name(parameters: Example) -> dict[str, object]:
    return {spec.name: getattr(parameters, spec.field) for spec in parameter_specs(Example)}


@given(changes, st.booleans())
def test_a_change_is_taken_as_a_whole_or_not_at_all(values, unconfigured):
    current = build_parameters(Example, {})
    before = by_name(current)
    try:
        after = with_changes(current, values, unconfigured=unconfigured)
    except ParameterError:
        assert by_name(current) == before
        return
    assert by_name(current) == before
    for name, value in by_name(after).items():
        wanted = values.get(name, before[name])
        assert value == (tuple(wanted) if isinstance(wanted, list) else wanted)
        assert type(value) is type(before[name])


def test_a_switch_says_what_it_takes():
    (fast,) = (spec for spec in parameter_specs(Example) if spec.name == 'fast')
    assert fast.allowed == 'true or false'


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
