# SPDX-License-Identifier: Apache-2.0
"""Each launch file for real: `ros2 launch`, nodes that speak, Ctrl-C, and nothing left."""

from __future__ import annotations

from collections import Counter
import os
import signal

import pytest
from sensor_msgs.msg import JointState

from lerobot_serve.contract.names import ros_token
from lerobot_serve.ros import qos
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction, RouterState, ServerStatus

NULL = ('policy_kind:=null', 'policy_path:=joints=6,chunk=30,cameras=,fps=30')
NULL_A = tuple(word.replace(':=', '_a:=') for word in NULL)
NULL_B = tuple(word.replace(':=', '_b:=') for word in NULL)

REACH = f'policy_path:={shared_file("config/policies/reach")}'

STARTS = {
    'server.launch.py': (
        ('namespace:=left', *NULL),
        {'/left/policy_server/status': (ServerStatus, qos.STATE)},
    ),
    'edge.launch.py': (
        ('namespace:=robot_1',),
        {'/robot_1/edge_controller/state': (EdgeState, qos.STATE)},
    ),
    'ab.launch.py': (
        (*NULL_A, *NULL_B),
        {
            '/policy_router/status': (ServerStatus, qos.STATE),
            '/slot_a/policy_server/status': (ServerStatus, qos.STATE),
            '/slot_b/policy_server/status': (ServerStatus, qos.STATE),
        },
    ),
    'fleet.launch.py': (
        ('robots:=2',),
        {
            '/robot_1/edge_controller/state': (EdgeState, qos.STATE),
            '/robot_2/edge_controller/state': (EdgeState, qos.STATE),
            '/robot_1/joint_states': (JointState, qos.SENSOR),
            '/robot_2/joint_states': (JointState, qos.SENSOR),
        },
    ),
}
MISTAKES = {
    'fleet.launch.py robots:=0': 'robots must be in [1, 200], got 0',
    'fleet.launch.py robots:=abc': "integer, got 'abc'",
    'fleet.launch.py robot:=2': 'robot is not an argument of fleet.launch.py; use robots,',
    'edge.launch.py params_file:=/none.yaml': "must be an existing file, got '/none.yaml'",
    'edge.launch.py codec:=gif': "codec must be one of jpeg, raw, got 'gif'",
    'ab.launch.py split_percent:=140': 'split_percent must be in [0, 100], got 140',
    'server.launch.py respawn:=maybe': "respawn must be one of true, false, got 'maybe'",
}


def listen(observer, topics: dict) -> dict[str, list]:
    """Return where the messages of each topic are gathered."""
    heard = {topic: [] for topic in topics}
    for topic, (kind, profile) in topics.items():
        observer.create_subscription(kind, topic, heard[topic].append, profile)
    return heard


@pytest.mark.parametrize('file', STARTS)
def test_it_brings_its_nodes_up_and_ctrl_c_ends_all(file, launch, observer, wait_until):
    words, topics = STARTS[file]
    heard = listen(observer, topics)
    launched = launch(file, *words)
    wait_until(lambda: all(heard.values()), f'a message on each of {list(topics)}', launched)
    names = Counter(observer.get_node_names_and_namespaces())
    assert max(names.values()) == 1, 'two nodes have the same name'
    assert launched.interrupt() == 0, launched.output
    assert launched.alive() == []
    assert 'Traceback' not in launched.output
    assert 'escalating' not in launched.output


def test_a_recorder_records_and_ctrl_c_completes_its_bags(launch, observer, wait_until, tmp_path):
    folder = tmp_path / 'bags'
    topic = '/arm/edge_controller/state'
    publisher = observer.create_publisher(EdgeState, topic, qos.STATE)
    launched = launch('recorder.launch.py', f'folder:={folder}', 'strategy:=sentry')
    wait_until(publisher.get_subscription_count, f'the recorder hears {topic}', launched)
    publisher.publish(EdgeState(client_id='arm'))
    wait_until(lambda: list(folder.glob('*/*.mcap')), 'a bag', launched)
    assert launched.interrupt() == 0, launched.output
    assert launched.alive() == []
    (bag,) = (file.parent for file in folder.glob('*/metadata.yaml'))
    assert topic in [message.topic for message in Bag(bag).read()]


def test_a_robot_may_be_called_anything(launch, observer, wait_until):
    client_id = 'Lab 3/arm #2'
    topic = f'/{ros_token(client_id)}/edge_controller/state'
    heard = listen(observer, {topic: (EdgeState, qos.STATE)})
    launched = launch('edge.launch.py', f'client_id:={client_id}')
    wait_until(lambda: heard[topic], f'a message on {topic}', launched)
    assert heard[topic][0].client_id == client_id
    assert launched.interrupt() == 0, launched.output


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_is_one_line_and_starts_nothing(mistake, launch):
    launched = launch(*mistake.split())
    assert launched.process.wait(60) == 1
    said = [line for line in launched.output.splitlines() if not line.startswith('[INFO]')]
    assert len(said) == 1, launched.output
    assert MISTAKES[mistake] in said[0]
    assert 'process started' not in launched.output


def test_arguments_win_over_the_file_and_the_file_over_the_defaults(
    launch, observer, wait_until, tmp_path
):
    file = tmp_path / 'mine.yaml'
    file.write_text(
        '/left/policy_server:\n  ros__parameters: {max_sessions: 5, status_period_s: 0.1}\n'
        '/**:\n  ros__parameters: {max_sessions: 7, slot: b}\n'
    )
    topic = '/left/policy_server/status'
    heard = listen(observer, {topic: (ServerStatus, qos.STATE)})
    words = ('namespace:=left', f'params_file:={file}', 'max_sessions:=3', *NULL)
    launched = launch('server.launch.py', *words)
    # before the policy is loaded no session can be served
    status = wait_until(
        lambda: next((each for each in heard[topic] if each.max_sessions), None),
        'the status of a server that serves',
        launched,
    )
    assert (status.max_sessions, status.slot) == (3, 'b')
    assert launched.interrupt() == 0


def test_the_slots_are_a_and_b_and_the_split_is_as_given(launch, observer, wait_until):
    topics = {f'/slot_{slot}/policy_server/status': (ServerStatus, qos.STATE) for slot in 'ab'}
    topics['/policy_router/state'] = RouterState, qos.STATE
    heard = listen(observer, topics)
    launched = launch('ab.launch.py', 'split_percent:=30', *NULL_A, *NULL_B)
    wait_until(lambda: all(heard.values()), 'a word of every node', launched)
    *servers, states = heard.values()
    assert [statuses[0].slot for statuses in servers] == ['a', 'b']
    # what a slot gets is another thing while one of them loads
    wait_until(
        lambda: [slot.share_percent for slot in states[-1].slots] == [30, 70],
        'both slots get their share',
        launched,
    )
    assert launched.interrupt() == 0


def test_a_slot_may_have_several_servers_and_a_policy_be_in_shadow(launch, observer, wait_until):
    names = [f'/slot_{slot}_{number}' for slot in 'ab' for number in (1, 2)]
    topics = {
        f'{name}/policy_server/status': (ServerStatus, qos.STATE) for name in [*names, '/shadow']
    }
    topics['/policy_router/state'] = RouterState, qos.STATE
    heard = listen(observer, topics)
    words = (*NULL_A, *NULL_B, *(f'shadow_{word}' for word in NULL), 'replicas:=2')
    launched = launch('ab.launch.py', *words, 'canary_plan:=5,100')
    wait_until(lambda: all(heard.values()), 'a word of every node', launched)
    *servers, states = heard.values()
    assert [statuses[0].slot for statuses in servers] == ['a', 'a', 'b', 'b', 'prod']
    replicas = [replica.server for slot in states[0].slots for replica in slot.replicas]
    assert replicas == [f'{name}/policy_server' for name in names]
    assert launched.interrupt() == 0, launched.output


def test_a_robot_that_dies_takes_no_other_down(launch, observer, wait_until):
    topic = '/robot_2/edge_controller/state'
    heard = listen(observer, {topic: (EdgeState, qos.STATE)})
    launched = launch('fleet.launch.py', 'robots:=2')
    wait_until(lambda: heard[topic] and len(launched.nodes()) == 4, 'both robots', launched)
    os.kill(launched.nodes()['/robot_1/edge_controller'], signal.SIGKILL)
    wait_until(lambda: 'process has died' in launched.output, 'launch sees it', launched)
    heard[topic].clear()
    wait_until(lambda: heard[topic], 'robot_2 continues', launched)
    left = {'/robot_1/sim_robot', '/robot_2/sim_robot', '/robot_2/edge_controller'}
    assert set(launched.nodes()) == left
    assert launched.interrupt() == 0


@pytest.mark.parametrize('respawn', ['true', 'false'])
def test_a_server_that_dies_comes_back_when_asked_to(respawn, launch, wait_until):
    launched = launch('server.launch.py', f'respawn:={respawn}', *NULL)
    first = wait_until(lambda: launched.nodes().get('/policy_server'), 'the server', launched)
    os.kill(first, signal.SIGKILL)
    if respawn == 'false':
        launched.process.wait(30)
        return
    # launch notes it a moment after it is there; a Ctrl-C between the two loses it (launch 3.4)
    wait_until(
        lambda: launched.output.count('process started with pid') == 2, 'a new one', launched
    )
    assert launched.nodes()['/policy_server'] != first
    assert launched.interrupt() == 0


@pytest.mark.parametrize(
    ('file', 'words', 'server'),
    [
        ('server.launch.py', (REACH,), '/policy_server'),
        ('ab.launch.py', tuple(REACH.replace(':=', f'_{s}:=') for s in 'ab'), '/policy_router'),
    ],
)
def test_simulated_robots_are_driven(file, words, server, launch, observer, wait_until):
    pytest.importorskip('torch', reason='the shipped policy runs on torch')
    topics = {
        f'/robot_{number}/edge_controller/executed_action': (ExecutedAction, qos.EXECUTED_ACTION)
        for number in (1, 2)
    }
    heard = listen(observer, topics)
    serving = launch(file, *words)
    size = ('image_height:=96', 'image_width:=128')
    robots = launch('fleet.launch.py', 'robots:=2', f'servers:={server}', *size)
    wait_until(lambda: all(heard.values()), 'both robots execute actions', robots)
    assert robots.interrupt() == 0, robots.output
    assert serving.interrupt() == 0, serving.output
    assert robots.alive() + serving.alive() == []
