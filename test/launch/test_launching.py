# SPDX-License-Identifier: Apache-2.0
"""Arguments of the launch files: what is shown, what is refused, and what wins over a file."""

from __future__ import annotations

from pathlib import Path
import sys

import pytest

pytest.importorskip(
    'launch_ros',
    reason='the launch packages are part of a ROS 2 installation; there are no wheels of them',
)

from launch import LaunchContext
from launch.launch_description_sources.python_launch_file_utilities import (
    get_launch_description_from_python_launch_file as load,
)
import rclpy
from rclpy.node import Node

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.parameters import build_parameters, ParameterError
from lerobot_serve.ros import launch_support
from lerobot_serve.ros.process.fastdds_profile import PROFILE_VARIABLES
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters

FOLDER = Path(__file__).resolve().parents[2] / 'launch'
FILES = sorted(FOLDER.glob('*.launch.py'))
files = pytest.mark.parametrize('file', FILES, ids=lambda file: file.name)
EXPECTED = {
    'server.launch.py': {
        'policy_kind',
        'policy_path',
        'device',
        'slot',
        'scheduler',
        'admission',
        'max_sessions',
        'metrics_port',
        'metrics_address',
        'trace_folder',
        'trace_images',
        *launch_support.ZENOH,
        'params_file',
        'namespace',
        'respawn',
        'log_level',
    },
    'edge.launch.py': {
        'namespace',
        'client_id',
        'servers',
        'robot_file',
        'network_profile',
        'task',
        'codec',
        'link',
        *launch_support.ZENOH,
        'params_file',
        'log_level',
    },
    'gateway.launch.py': {
        'doors',
        'server',
        'max_callers',
        'request_timeout_s',
        'metrics_port',
        'metrics_address',
        'link',
        *launch_support.ZENOH,
        'params_file',
        'namespace',
        'respawn',
        'log_level',
    },
    'learner.launch.py': {
        *('trainer', 'parent', 'folder', 'store', 'episode_folders', 'episodes_per_round'),
        *('router', 'sources', 'metrics_port', 'metrics_address'),
        *('params_file', 'namespace', 'respawn', 'log_level'),
    },
    'recorder.launch.py': {
        'folder',
        'strategy',
        'robot',
        'slice_size',
        'slice_time',
        'keep_slices',
        'namespace',
        'respawn',
    },
    'ab.launch.py': {
        'split_percent',
        'canary_plan',
        *launch_support.ZENOH,
        'policy_kind_a',
        'policy_path_a',
        'device_a',
        'policy_kind_b',
        'policy_path_b',
        'device_b',
        'shadow_policy_kind',
        'shadow_policy_path',
        'shadow_device',
        'replicas',
        'max_sessions',
        'params_file',
        'server_params_file',
        'namespace',
        'respawn',
        'log_level',
    },
    'fleet.launch.py': {
        'robots',
        'servers',
        'task',
        'codec',
        'link',
        'zenoh_connect',
        'zenoh_site',
        'zenoh_keys',
        'image_height',
        'image_width',
        'outcome_topic',
        'seed',
        'params_file',
        'namespace',
        'log_level',
    },
}
NAME = '/slot_a/policy_server'
SPLIT = launch_support.parameter_overrides(RouterParameters, 'split_percent')[0]
SERVERS = launch_support.parameter_overrides(EdgeParameters, 'servers')[0]
PLAN = launch_support.parameter_overrides(RouterParameters, 'canary.plan')[0]
PATH_A = launch_support.parameter_overrides(
    ServerParameters, 'policy_path', form='{}_a', prefix_text='slot a: '
)[0]
KEYS = launch_support.parameter_overrides(EdgeParameters, 'zenoh_keys')[0]
SESSIONS_A = launch_support.parameter_overrides(ServerParameters, 'max_sessions', form='{}_a')[0]


def value(argument: launch_support.LaunchArgument, text: str) -> object:
    context = LaunchContext()
    context.launch_configurations[argument.name] = text
    return argument.value(context)


@files
def test_every_argument_has_a_description_and_a_default(file):
    arguments = load(str(file)).get_launch_arguments()
    assert {argument.name for argument in arguments} == EXPECTED[file.name]
    for argument in arguments:
        assert argument.description[0].isupper()
        assert argument.description.endswith('.')
        assert argument.default_value is not None


def test_a_description_has_unit_bounds_and_what_empty_means():
    assert SPLIT.declare().description == (
        'Share of new episodes to slot a [%]; in [0, 100]. Empty: the value in params_file.'
    )


def test_a_description_says_what_is_taken_for_an_empty_argument():
    (namespace,) = launch_support.launch_options('namespace', empty_text='client_id')
    assert namespace.declare().description == (
        'Namespace of all nodes, for example robot_1 or cell_2. Empty: client_id.'
    )


def test_an_empty_argument_leaves_the_value_to_the_file():
    assert value(SPLIT, '') is None
    assert value(SPLIT, ' ') is None


def test_a_value_gets_the_type_of_the_parameter():
    assert value(SPLIT, '30') == 30
    assert value(PATH_A, '30') == '30'


def test_a_list_is_given_with_commas():
    assert value(SERVERS, '/a, /b') == ('/a', '/b')
    assert value(SERVERS, '/a') == ('/a',)
    assert ', separated by commas. Empty: ' in SERVERS.declare().description


def test_a_list_arrives_as_one():
    given = launch_support.write_parameter_file(
        'policy_server', 'edge', {'servers': value(SERVERS, '/a,/b')}
    )
    assert read([given]) == {'servers': ['/a', '/b']}


def test_a_name_with_a_dot_is_an_argument_with_an_underscore_and_arrives_as_it_is():
    assert PLAN.name == 'canary_plan'
    steps = value(PLAN, '5, 25:40:600,100')
    given = launch_support.write_parameter_file(
        'policy_server', 'ab', {'canary.plan': steps, 'slot_a': ['/a', '/b']}
    )
    assert read([given]) == {'canary.plan': ['5', '25:40:600', '100'], 'slot_a': ['/a', '/b']}


def test_a_home_folder_is_found(monkeypatch):
    monkeypatch.setenv('HOME', '/home/someone')
    assert value(PATH_A, '~/policy') == '/home/someone/policy'
    assert value(KEYS, '~/keys') == '/home/someone/keys'


@pytest.mark.parametrize('text', ['140', '-1', 'abc', '1.5'])
def test_a_wrong_value_is_refused_with_name_bound_and_value(text):
    with pytest.raises(ParameterError, match=f'^split_percent must be .*{text}'):
        value(SPLIT, text)


def test_a_wrong_value_of_a_slot_is_refused_with_the_name_of_the_argument():
    with pytest.raises(ParameterError, match=r'^max_sessions_a must be in \[1, 4096\], got 0'):
        value(SESSIONS_A, '0')


def test_an_unknown_argument_is_refused(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['ros2', 'launch', 'lerobot_serve', 'some.launch.py'])
    with pytest.raises(ParameterError, match='robot is not an argument of some'):
        launch_support.check_known_arguments(
            'some.launch.py', ['robots:=1', 'robot:=2'], ['robots']
        )
    launch_support.check_known_arguments(
        'some.launch.py', ['robots:=1', 'launch-prefix:=gdb'], ['robots']
    )


def test_the_arguments_of_an_including_launch_file_are_not_judged(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['ros2', 'launch', 'mine', 'all.launch.py', 'speed:=2'])
    launch_support.check_known_arguments('some.launch.py', ['speed:=2'], ['robots'])


def test_the_profile_of_the_package_is_named_unless_the_user_named_one(monkeypatch):
    for name in PROFILE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert len(launch_support.fastdds_profile_actions()) == 1
    for name in PROFILE_VARIABLES:
        monkeypatch.setenv(name, '/mine.xml')
        assert launch_support.fastdds_profile_actions() == []
        monkeypatch.delenv(name)


def entry(key: str, number: int) -> str:
    return f'{key}:\n  ros__parameters: {{max_sessions: {number}}}\n'


ENTRIES = {
    'shipped': '/**:\n  policy_server:\n    ros__parameters: {max_sessions: 1}\n',
    'everywhere': entry('/**', 1),
    'one node': entry(NAME, 1),
    'general first': entry('/**', 1) + entry(NAME, 2),
    'general last': entry(NAME, 1) + entry('/**', 2),
    'three': entry(NAME, 1) + entry('/**', 2) + entry('/**/policy_server', 3),
}


@pytest.mark.parametrize('text', ENTRIES.values(), ids=list(ENTRIES))
def test_what_is_given_wins_over_any_form_of_parameter_file(text, tmp_path):
    file = tmp_path / 'mine.yaml'
    file.write_text(text)
    assert read([str(file)])['max_sessions'] < 9
    given = launch_support.write_parameter_file(
        'policy_server', 'slot_a.policy_server', {'max_sessions': 9}
    )
    assert read([str(file), given])['max_sessions'] == 9


def test_text_stays_text(tmp_path):
    given = launch_support.write_parameter_file(
        'policy_server', 'policy_server', {'policy_path': '007: [x'}
    )
    assert read([given]) == {'policy_path': '007: [x'}


def started(monkeypatch, file: str, **given: str) -> dict[str, dict[str, object]]:
    """Return what a launch file gives each node that it starts, by its full name."""
    nodes: dict[str, dict[str, object]] = {}

    def note(executable: str, *, given: dict, namespace: str = '', **_: object) -> str:
        values = {name: value for name, value in given.items() if value is not None}
        nodes['/'.join(['', *filter(None, [namespace]), executable])] = values
        return executable

    monkeypatch.setattr(launch_support, 'node_action', note)
    *arguments, start = load(str(FOLDER / file)).entities
    context = LaunchContext()
    for argument in arguments:
        context.launch_configurations[argument.name] = given.pop(argument.name, '') or ''.join(
            part.text for part in argument.default_value
        )
    assert not given
    start.execute(context)
    return nodes


def test_one_server_of_each_slot_and_a_router_that_knows_them(monkeypatch):
    nodes = started(monkeypatch, 'ab.launch.py')
    assert nodes == {
        '/slot_a/policy_server': {'slot': 'a'},
        '/slot_b/policy_server': {'slot': 'b'},
        '/policy_router': {
            'slot_a': ['slot_a/policy_server'],
            'slot_b': ['slot_b/policy_server'],
        },
    }


def test_two_groups_have_room_in_one_domain(monkeypatch):
    groups = [
        started(monkeypatch, 'ab.launch.py', namespace=name, shadow_policy_kind='builtin')
        for name in ('cell_1', 'cell_2')
    ]
    for name, nodes in zip(('cell_1', 'cell_2'), groups, strict=True):
        assert all(node.startswith(f'/{name}/') for node in nodes)
        router = RouterParameters(**nodes[f'/{name}/policy_router']).within(f'/{name}')
        assert {*router.servers, router.shadow_server} == {*nodes} - {f'/{name}/policy_router'}
    robots = started(monkeypatch, 'fleet.launch.py', robots='1', namespace='cell_1')
    assert {*robots} == {'/cell_1/robot_1/sim_robot', '/cell_1/robot_1/edge_controller'}


def test_several_servers_of_each_slot_one_in_shadow_and_a_plan(monkeypatch):
    given = {'policy_path_a': '/old', 'policy_path_b': '/new', 'shadow_policy_path': '/next'}
    given |= {'shadow_device': 'cuda:1', 'max_sessions': '8', 'canary_plan': '5,100'}
    nodes = started(monkeypatch, 'ab.launch.py', replicas='2', **given)
    router = nodes.pop('/policy_router')
    for slot, path in (('a', '/old'), ('b', '/new')):
        names = [f'slot_{slot}_{number}/policy_server' for number in (1, 2)]
        assert router.pop(f'slot_{slot}') == names
        for name in names:
            assert nodes.pop(f'/{name}') == {'slot': slot, 'policy_path': path, 'max_sessions': 8}
    assert router == {'shadow_server': 'shadow/policy_server', 'canary.plan': ('5', '100')}
    shadow = {'slot': 'prod', 'policy_path': '/next', 'device': 'cuda:1', 'max_sessions': 8}
    assert nodes == {'/shadow/policy_server': shadow}
    # what the router is given is what it takes
    build_parameters(RouterParameters, {**router, 'slot_a': ['/a'], 'slot_b': ['/b']})


def test_the_kind_alone_brings_a_policy_in_shadow(monkeypatch):
    nodes = started(monkeypatch, 'ab.launch.py', shadow_policy_kind='builtin')
    assert nodes['/shadow/policy_server'] == {'slot': 'prod', 'policy_kind': 'builtin'}
    nodes = started(monkeypatch, 'ab.launch.py', shadow_device='cuda:1')
    assert '/shadow/policy_server' not in nodes


def test_each_node_gets_what_it_needs_of_the_zenoh_link(monkeypatch):
    given = {'zenoh_connect': 'tcp/10.0.0.1:7447,tcp/10.0.0.2:7447', 'zenoh_site': 'lab'}
    taken = {**given, 'zenoh_connect': tuple(given['zenoh_connect'].split(','))}
    (server,) = started(
        monkeypatch, 'server.launch.py', zenoh_listen='tcp/0.0.0.0:7447', **given
    ).values()
    assert server == {'zenoh_listen': ('tcp/0.0.0.0:7447',), **taken}
    build_parameters(ServerParameters, server)
    nodes = started(monkeypatch, 'ab.launch.py', **given)
    assert given.keys() <= nodes['/policy_router'].keys()
    assert nodes['/slot_a/policy_server'] == {'slot': 'a'}
    for file in ('edge.launch.py', 'fleet.launch.py'):
        nodes = started(monkeypatch, file, link='zenoh', **given)
        edges = [values for name, values in nodes.items() if name.endswith('edge_controller')]
        assert edges and all(edge == {'link': 'zenoh', **taken} for edge in edges)
        build_parameters(EdgeParameters, edges[0])


def test_robots_tell_a_router_how_their_attempts_end(monkeypatch):
    nodes = started(monkeypatch, 'fleet.launch.py', robots='2', outcome_topic='/router/outcome')
    for number in (1, 2):
        assert nodes[f'/robot_{number}/sim_robot']['outcome_topic'] == '/router/outcome'
        assert 'outcome_topic' not in nodes[f'/robot_{number}/edge_controller']


def read(files: list[str]) -> dict[str, object]:
    """Return what a node would get."""
    context = rclpy.Context()
    arguments = [word for file in files for word in ('--params-file', file)]
    rclpy.init(args=['--ros-args', *arguments], context=context)
    namespace, _, name = NAME.rpartition('/')
    node = Node(name, namespace=namespace, context=context)
    try:
        return {name: entry.value for name, entry in node._parameter_overrides.items()}
    finally:
        node.destroy_node()
        context.shutdown()
