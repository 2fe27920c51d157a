# SPDX-License-Identifier: Apache-2.0
"""What a user gets wrong at start: one line that says what and how to mend it, and status 1."""

from __future__ import annotations

import subprocess

import pytest

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import parameter_specs
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.processes import executable_path

REACH = shared_file('config/policies/reach')
EXECUTABLES = {
    'policy_server': ServerParameters,
    'policy_router': RouterParameters,
    'edge_controller': EdgeParameters,
    'gateway': GatewayParameters,
    'learner': LearnerParameters,
    'sim_robot': SimParameters,
}


def run(executable: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [str(executable_path(executable)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def parameter(name: str, value: str) -> list[str]:
    return ['--ros-args', '-p', f'{name}:={value}']


MISTAKES = [
    ('policy_server', [], ['policy_path is empty', 'no policy to serve']),
    (
        'policy_server',
        parameter('polcy_path', 'x'),
        ['polcy_path is not a parameter', 'did you mean policy_path?'],
    ),
    (
        'policy_server',
        ['--policy.path=/models/act', '--device', 'cuda:0'],
        [
            '--policy.path=/models/act --device cuda:0',
            '-p policy_path:=/models/act -p device:=cuda:0',
        ],
    ),
    ('policy_server', ['policy_path:=/models/act'], ['--ros-args -p policy_path:=/models/act']),
    ('edge_controller', ['--robot-file', 'my.yaml'], ['-p robot_file:=my.yaml']),
    ('policy_router', ['--split_percent=5'], ['-p split_percent:=5']),
    ('sim_robot', ['now'], ['unknown argument: now', 'sim_robot --help']),
    (
        'sim_robot',
        ['--ros-args', '-p', 'sim_robt:seed:=3'],
        ['addresses the node sim_robt', '/sim_robot'],
    ),
    ('policy_server', parameter('max_sessions', '0'), ['max_sessions', '[1, 4096]', 'got 0']),
    ('policy_server', parameter('max_sessions', 'many'), ['max_sessions', 'integer', "'many'"]),
    ('policy_server', parameter('slot', 'c'), ['slot must be one of prod, a, b', "'c'"]),
    ('policy_server', parameter('pin_task', 'true'), ['pin_task needs a default_task']),
    ('policy_server', parameter('policy_kind', 'magic'), ["no policy kind 'magic'", 'null']),
    ('policy_server', parameter('policy_path', '/nowhere'), ['/nowhere']),
    (
        'policy_server',
        [*parameter('device', 'cuda:99'), '-p', f'policy_path:={REACH}'],
        ['cuda:99'],
    ),
    ('edge_controller', [], ['client_id is empty']),
    (
        'edge_controller',
        [*parameter('servers', '["no topic"]'), '-p', 'client_id:=r'],
        ["'no topic'", '/policy_server'],
    ),
    (
        'edge_controller',
        parameter('request_threshold_s', '9.0'),
        ['request_threshold_s must be below'],
    ),
    ('policy_router', parameter('split_percent', '140'), ['split_percent', '[0, 100]', '140']),
    ('policy_router', parameter('slot_a', '/a'), ['slot_a must be a string array', "'/a'"]),
    ('policy_router', parameter('slot_a', '["/slot_b/policy_server"]'), ['slot_a', 'slot_b']),
    ('policy_router', parameter('shadow_server', 'no server'), ['shadow_server', "'no server'"]),
    ('policy_router', parameter('canary.plan', '["5", "50"]'), ["must end with '100'"]),
    ('gateway', parameter('doors', '[grpc]'), ['grpc', 'lerobot', 'http']),
    ('gateway', parameter('openpi.port', '1'), ['openpi.port', 'doors']),
    ('learner', [], ['parent is empty', 'a version of the store']),
    ('learner', parameter('parent', '/nowhere'), ['/nowhere is not a folder']),
    ('learner', parameter('parent', 'nothing'), ["parent: 'nothing' is not in store"]),
    ('learner', parameter('trainer', '/nowhere.yaml'), ['/nowhere.yaml']),
    ('sim_robot', parameter('rate_hz', '.nan'), ['rate_hz']),
    ('sim_robot', ['--ros-args', '--params-file', '/nowhere.yaml'], ['/nowhere.yaml']),
    ('sim_robot', ['--ros-args', '-p', 'rate_hz'], ['rate_hz']),
]


@pytest.mark.parametrize(('executable', 'arguments', 'said'), MISTAKES)
def test_one_line_and_status_1(fork_server, tmp_path, executable, arguments, said):
    if 'device' in str(arguments) or (
        'nowhere' in str(arguments) and executable == 'policy_server'
    ):
        pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    status, output = fork_server.run(executable, arguments, tmp_path)
    lines = [line for line in output.splitlines() if line.startswith('error: ')]
    assert status == 1, output
    assert len(lines) == 1, output
    assert 'Traceback' not in output
    for words in said:
        assert words in lines[0]


@pytest.mark.parametrize(
    'content',
    ['sim_robot: [', 'sim_robot:\n  ros__parameters:\n    rate_hz: {a: {b: }}\n', '\x00\xff'],
)
def test_a_broken_parameter_file_is_one_line(tmp_path, content):
    file = tmp_path / 'broken.yaml'
    file.write_text(content)
    result = run('sim_robot', '--ros-args', '--params-file', str(file))
    assert result.returncode == 1
    assert 'error: ' in result.stderr
    assert 'Traceback' not in result.stderr


@pytest.mark.parametrize('executable', EXECUTABLES)
def test_help_prints_the_parameters_and_starts_nothing(executable):
    result = run(executable, '--help')
    assert result.returncode == 0
    assert result.stdout.startswith(f'usage: {executable} ')
    assert not result.stderr
    for spec in parameter_specs(EXECUTABLES[executable]):
        assert f'  {spec.name} ' in result.stdout
        assert spec.text in result.stdout


def test_a_parameter_file_for_another_node_is_not_passed_over(tmp_path):
    file = tmp_path / 'mine.yaml'
    file.write_text('/robot_1:\n  sim_robt:\n    ros__parameters: {seed: 3}\n')
    result = run('sim_robot', '--ros-args', '--params-file', str(file), '-r', '__ns:=/robot_1')
    assert result.returncode == 1
    assert 'has no entry for /robot_1/sim_robot, only for /robot_1/sim_robt' in result.stderr


def test_a_broken_robot_file_names_its_place(tmp_path, sim_arm_yaml):
    file = tmp_path / 'robot.yaml'
    file.write_text(sim_arm_yaml.read_text().replace('max_step: 0.15', 'max_step: quick', 1))
    arguments = [*parameter('robot_file', str(file)), '-p', 'client_id:=robot']
    result = run('edge_controller', *arguments)
    assert result.returncode == 1
    assert f'{file}: actions: shoulder_pan.pos: max_step must be a number' in result.stderr
    assert 'Traceback' not in result.stderr


@pytest.mark.parametrize(
    ('arguments', 'status', 'said'),
    [
        (['demo', '--robots', '0'], 2, '--robots must be in'),
        (['record', '/proc/nope'], 1, '/proc/nope'),
        (['dance'], 2, 'invalid choice'),
        ([], 2, 'VERB'),
        (['--help'], 0, 'example:'),
    ],
)
def test_the_command_line_explains_itself(arguments, status, said):
    result = run('lerobot-serve', *arguments)
    assert result.returncode == status
    assert said in result.stdout + result.stderr
    assert 'Traceback' not in result.stderr
