# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve rerun` as a process: a live robot over both links, and signals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
import signal

import numpy as np
import pytest
from support.nodes.edge_rig import EdgeRig
from support.nodes.recorder_process import verb, VerbProcess
from support.nodes.zenoh_links import free_endpoint
from support.tools.bag_rig import write
from support.tools.rerun_rig import Scene
from support.tools.rrd_file import RrdFile

from lerobot_serve_interfaces.msg import ExecutedAction

SHAPE = 'joints=6,chunk=60,cameras=,fps=30'
ROBOT = 'robot_1'
AT = ('robots', ROBOT)
EDGE = f'/{ROBOT}/edge_controller'


@pytest.fixture
def link() -> str:
    """The test sets the link itself."""
    return 'ros'


def view(file: Path, *options: str) -> AbstractContextManager[VerbProcess]:
    """Run the verb; its output is in FILE.log."""
    return verb(file.with_suffix('.log'), 'rerun', '--save', str(file), *options)


def listens(rig: EdgeRig, topic: str) -> Callable[[], bool]:
    def is_there() -> bool:
        ends = rig.node.get_subscriptions_info_by_topic(topic)
        return any(end.node_name == 'rerun_view' for end in ends)

    return is_there


def is_shown_as_executed(found: RrdFile, executed: list[ExecutedAction]) -> int:
    """Compare wanted and commanded values with the messages; return the number of commands."""
    by_step = {action.control_step: action for action in executed if len(action.raw)}
    (first, *_) = [path for path in found.rows if path.endswith('/wanted')]
    joints = sorted({path.split('/')[4] for path in found.rows if path.endswith('/wanted')})
    assert len(joints) == 6, first
    names = [joint.replace('\\', '') for joint in joints]
    compared = 0
    for series in ('wanted', 'commanded'):
        columns = {
            name: {
                row.times['control_step']: row.components['Scalars:scalars'][0]
                for row in found.at(*AT, 'joints', name, series)
            }
            for name in names
        }
        steps = set.intersection(*(set(column) for column in columns.values()))
        common = steps & set(by_step)
        for step in common:
            field = 'raw' if series == 'wanted' else 'commanded'
            message = np.asarray(getattr(by_step[step], field), np.float32)
            assert sorted(columns[n][step] for n in names) == sorted(message.tolist())
        compared += len(common)
    return compared // 2


@pytest.mark.slow
def test_a_live_robot_is_shown_with_a_server(edge_rig, tmp_path):
    file = tmp_path / 'view.rrd'
    edge_rig.start_server(policy_path=SHAPE)
    with view(file, '--robot', ROBOT) as process:
        edge = edge_rig.start()
        edge_rig.wait_for_play()
        edge_rig.wait(listens(edge_rig, f'{EDGE}/executed_action'), 'it hears commands')
        edge_rig.wait(listens(edge_rig, '/policy_server/observation'), 'it hears requests')
        edge_rig.wait_for_play(120)
        assert process.stop() == 0, process.log
        edge_rig.stop(edge)
    found = RrdFile(file)
    assert is_shown_as_executed(found, edge_rig.seen.executed) >= 100
    told = process.log
    assert f'showing {ROBOT} in {file}; Ctrl-C ends it' in told
    assert 'messages shown; ended on request' in told
    assert {'policy', 'ladder', 'connection'} <= {p.split('/')[-1] for p in found.rows}
    assert found.at(*AT, 'joints', joint_of(found), 'measured')
    assert found.at(*AT, 'joints', joint_of(found), 'plan', '0')
    assert found.at(*AT, 'queue', 'remaining_s')
    assert found.at('nodes', 'policy_server', 'states', 'server')
    assert {'time', 'control_step', f'clock of {ROBOT}'} <= found.timelines


def joint_of(found: RrdFile) -> str:
    """Return a joint with its real name: sessions are in what a late listener gets."""
    name = next(path for path in found.rows if path.endswith('/wanted')).split('/')[4]
    assert not name.startswith('action')
    return name.replace('\\', '')


@pytest.mark.slow
def test_a_robot_over_zenoh_is_shown(edge_rig, tmp_path):
    endpoint, file = free_endpoint(), tmp_path / 'view.rrd'
    edge_rig.start_server(policy_path=SHAPE, zenoh_listen=[endpoint])
    edge_rig.wait(lambda: can_connect(endpoint), 'the server listens')
    with view(file, '--robot', ROBOT, '--connect', endpoint) as process:
        edge_rig.wait(file.exists, 'the view is there')
        edge_rig.wait(listens(edge_rig, '/policy_server/status'), 'it shows')
        edge = edge_rig.start(link='zenoh', zenoh_connect=[endpoint])
        edge_rig.wait_for_play(90)
        assert process.stop(signal.SIGTERM) == 0, process.log
        edge_rig.stop(edge)
    found = RrdFile(file)
    # requests pass over Zenoh only
    joint = joint_of(found)
    assert found.at(*AT, 'joints', joint, 'measured')
    assert found.at(*AT, 'request', 'inference_ms')
    # commands over ROS 2
    assert found.at(*AT, 'joints', joint, 'commanded')


def can_connect(endpoint: str) -> bool:
    import socket

    host, port = endpoint.removeprefix('tcp/').rsplit(':', 1)
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_an_unknown_live_robot_is_answered_with_the_nearest(edge_rig, tmp_path):
    file = tmp_path / 'view.rrd'
    edge_rig.start_server(policy_path=SHAPE)
    edge = edge_rig.start()
    edge_rig.wait_for_play()
    with view(file, '--robot', 'robot_11') as process:
        assert process.process.wait(60) == 1
    edge_rig.stop(edge)
    assert "'robot_11'; did you mean robot_1? found: robot_1" in process.log
    assert 'Traceback' not in process.log
    assert not file.exists()


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_bag_leaves_a_whole_file(tmp_path, number):
    scene = Scene()
    scene.session()
    for step in range(40_000):
        scene.execute([step / 1000, 1.0])
    bag, file = write(tmp_path / 'bag', scene.messages, every=1000), tmp_path / 'view.rrd'
    with view(file, str(bag)) as process:
        while not (file.exists() and file.stat().st_size > 100_000):
            assert process.process.poll() is None, process.log
        assert process.stop(number) == 130, process.log
    wanted = RrdFile(file).values('robots', 'robot_7', 'joints', 'gripper.pos', 'wanted')
    assert 1000 < len(wanted) < 40_000
    assert f'{len(wanted) + 1} of {len(wanted) + 1} messages shown; interrupted' in process.log


@pytest.mark.slow
def test_an_endpoint_that_is_not_reached_leaves_no_file(tmp_path):
    file = tmp_path / 'view.rrd'
    with view(file, '--connect', 'tcp/127.0.0.1:1') as process:
        assert process.process.wait(60) == 1
    assert 'does not open' in process.log
    assert 'Traceback' not in process.log
    assert not file.exists()
