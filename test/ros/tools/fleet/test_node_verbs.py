# SPDX-License-Identifier: Apache-2.0
"""`serve`, `edge` and `router` for real: the node of the executable, its signals and status."""

from __future__ import annotations

import os
from pathlib import Path
import signal
import subprocess

import pytest
from rcl_interfaces.srv import GetParameters
import rclpy
from rclpy.parameter import parameter_value_to_python
from support.waiting import wait_until

from lerobot_serve.ros import qos
from lerobot_serve.tools.fleet.process import ros_arguments
from lerobot_serve.tools.processes import end_with_parent, executable_path
from lerobot_serve_interfaces.msg import EdgeState, RouterState, ServerStatus

NULL = 'null:joints=6,chunk=30,cameras=,fps=30'
END_S = 40.0
# verb -> its words, a topic of its node, and parameters that it then has
STARTS = {
    'serve': (
        [NULL, '--namespace', 'left', '--max.sessions', '3', '--default-task', 'say "30"'],
        ('/left/policy_server/status', ServerStatus),
        {'max_sessions': 3, 'policy_kind': 'null', 'default_task': 'say "30"'},
    ),
    'edge': (
        ['sim_arm', '--client-id', '30', '--servers', '/a,/b', '--max_action_age_s', '4'],
        # a ROS name begins with a letter
        ('/n_30_624b60c5/edge_controller/state', EdgeState),
        {'client_id': '30', 'servers': ['/a', '/b'], 'max_action_age_s': 4.0},
    ),
    'router': (
        ['--slot-prod', '/x/policy_server', '--canary.margin', '0.2'],
        ('/policy_router/state', RouterState),
        {'slot_prod': ['/x/policy_server'], 'canary.margin': 0.2},
    ),
}


class Verb:
    """One `lerobot-serve VERB` in a process, with its output in a file."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._log = folder / 'verb.log'
        environment = {**os.environ, 'ROS_HOME': str(folder / 'ros')}
        with self._log.open('w') as log:
            self.process = subprocess.Popen(
                end_with_parent([str(executable_path('lerobot-serve')), *words]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors='replace')

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_S)


@pytest.fixture
def verb(tmp_path):
    started: list[Verb] = []

    def start(*words: str) -> Verb:
        started.append(Verb(tmp_path, list(words)))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def parameters_of(node, name: str, wanted: list[str]) -> dict[str, object]:
    client = node.create_client(GetParameters, f'{name}/get_parameters')
    assert client.wait_for_service(END_S), name
    future = client.call_async(GetParameters.Request(names=wanted))
    wait_until(future.done, f'the parameters of {name}')
    return {
        each: parameter_value_to_python(value)
        for each, value in zip(wanted, future.result().values, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'number'),
    [('serve', signal.SIGINT), ('edge', signal.SIGTERM), ('router', signal.SIGINT)],
)
def test_the_node_runs_with_its_flags_and_ends_in_order(name, number, verb, node):
    words, (topic, kind), expected = STARTS[name]
    heard: list[object] = []
    node.create_subscription(kind, topic, heard.append, qos.STATE)
    started = verb(name, *words)
    wait_until(lambda: heard, f'a message on {topic}\n{started.output}')
    own = parameters_of(node, topic.rpartition('/')[0], list(expected))
    assert {key: list(v) if isinstance(v, tuple) else v for key, v in own.items()} == expected
    # the process that was started is the executable itself: no other passes signals on
    running = Path(f'/proc/{started.process.pid}/cmdline').read_text().split('\0')
    assert any(word.endswith(f'/{topic.split("/")[-2]}') for word in running)
    assert started.end(number) == 0, started.output
    assert 'Traceback' not in started.output


@pytest.mark.parametrize(
    ('words', 'status', 'said'),
    [
        (['serve'], 1, 'error: policy_path is empty'),
        (['serve', '/nowhere'], 1, "policy '/nowhere' is neither there nor shipped"),
        (['serve', 'null:joints=x'], 1, 'error: the path of a null policy is its shape'),
        (['serve', '--polcy-path', 'x'], 2, 'did you mean --policy-path?'),
        (['edge'], 1, 'error: client_id is empty'),
        (['edge', 'no.yaml'], 1, "robot file 'no.yaml' is neither there nor shipped"),
        (['router', '--split-percent', '140'], 2, '--split-percent must be in [0, 100], got 140'),
        (['router', '--slot-a', 'x y'], 1, 'slot_a must be a node name'),
        (['up', 'no.yaml'], 1, "fleet file 'no.yaml' is neither there nor shipped"),
    ],
)
def test_a_mistake_is_one_line_with_the_status_of_the_executable(words, status, said, verb):
    started = verb(*words)
    assert started.process.wait(END_S) == status
    others = ('usage', '[INFO] ')
    lines = [
        line
        for line in started.output.splitlines()
        # the middleware prints of ports that another run on this machine holds
        if not line.startswith(others) and 'RTPS_TRANSPORT_SHM' not in line
    ]
    assert len(lines) == 1, started.output
    assert said in lines[0]


@pytest.mark.parametrize(
    'value', ['30', 'true', '', 'a: b', "it's", 'say "x"', 'ü 🤖', '~', '/a\\b', '1e3', '[a]']
)
def test_a_text_arrives_as_it_is(value):
    context = rclpy.Context()
    words = ros_arguments('edge_controller', {'task': value, 'tags': (value, 'k=v')})
    rclpy.init(args=words, context=context)
    try:
        made = rclpy.create_node('edge_controller', context=context)
        found = {name: given.value for name, given in made._parameter_overrides.items()}
        made.destroy_node()
    finally:
        context.shutdown()
    assert found['task'] == value
    assert list(found['tags']) == [value, 'k=v']


@pytest.mark.parametrize('value', [0, -3, 2.5, 1e-6, 1e22, True, False, 2**40])
def test_a_number_arrives_as_it_is(value):
    context = rclpy.Context()
    rclpy.init(args=ros_arguments('edge_controller', {'x': value}), context=context)
    try:
        made = rclpy.create_node('edge_controller', context=context)
        found = made._parameter_overrides['x'].value
        made.destroy_node()
    finally:
        context.shutdown()
    assert (type(found), found) == (type(value), value)
