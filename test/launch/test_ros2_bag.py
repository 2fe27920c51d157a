# SPDX-License-Identifier: Apache-2.0
"""`ros2 bag` of a ROS 2 installation and `lerobot-serve`: each reads what the other wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
import json
from pathlib import Path
import signal
import subprocess

import pytest

from lerobot_serve.ros import qos
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve_interfaces.msg import ActionChunk, EdgeState, ServerStatus

pytestmark = pytest.mark.skipif(
    not find_spec('rosbag2_py'),
    reason='ros2 bag is part of a ROS 2 installation; there are no wheels of it',
)
LIMIT_S = 60.0
REACH = f'policy_path:={shared_file("config/policies/reach")}'
REQUESTS = 5
INBOX, SERVICE = '/policy_server/observation', '/policy_server/open_session'
ANSWERS, STATUS = '/robot_1/edge_controller/action_chunk', '/policy_server/status'
RECORDERS = {
    'ours': (('lerobot-serve', 'record'), 'recorder'),
    'mcap': (('ros2', 'bag', 'record', '-s', 'mcap', '-a', '-o'), 'rosbag2_recorder'),
}
PLAY = ('--topics', INBOX, '--services', SERVICE, '--publish-service-requests', '--delay', '3')


@contextmanager
def recording(folder: Path, words: tuple[str, ...]) -> Iterator[None]:
    """Record until the end of the block, as an operator does who then presses Ctrl-C."""
    with open(folder.with_suffix('.log'), 'w') as log:
        process = subprocess.Popen(
            end_with_parent([*words, str(folder)]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def said(*words: object) -> str:
    """Return what a command prints that must go well."""
    ended = subprocess.run(
        [*map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture
def heard(observer) -> dict[str, list]:
    """What server and robot say, gathered by topic."""
    topics = {
        STATUS: (ServerStatus, qos.STATE),
        ANSWERS: (ActionChunk, qos.ACTION_CHUNK),
        '/robot_1/edge_controller/state': (EdgeState, qos.STATE),
    }
    messages = {topic: [] for topic in topics}
    for topic, (kind, profile) in topics.items():
        observer.create_subscription(kind, topic, messages[topic].append, profile)
    return messages


@pytest.mark.parametrize('name', RECORDERS)
def test_recorded_read_and_played(name, launch, observer, heard, wait_until, tmp_path):
    words, node = RECORDERS[name]
    bag = tmp_path / name
    server = launch('server.launch.py', REACH)
    wait_until(lambda: is_active(heard), 'the server serves', server)
    robot = launch('fleet.launch.py', 'robots:=1')
    with recording(bag, words):
        wait_until(lambda: node in listeners(observer, ANSWERS), 'it is recorded', robot)
        before = len(heard[ANSWERS])
        wait_until(lambda: len(heard[ANSWERS]) >= before + REQUESTS, 'the robot asks', robot)
    for launched in (robot, server):
        assert launched.interrupt() == 0, launched.output
    look_at(bag)
    for messages in heard.values():
        messages.clear()
    played(bag, launch('server.launch.py', REACH), heard, wait_until)


def is_active(heard: dict[str, list]) -> bool:
    return any(status.state == ServerStatus.ACTIVE for status in heard[STATUS])


def listeners(observer, topic: str) -> set[str]:
    return {each.node_name for each in observer.get_subscriptions_info_by_topic(topic)}


def look_at(bag: Path) -> None:
    """Topics, the service and all requests with their answers are there, for both."""
    info = said('ros2', 'bag', 'info', bag)
    for word in (INBOX, ANSWERS, f'Service: {SERVICE}'):
        assert word in info
    found = json.loads(said('lerobot-serve', 'replay', bag, '--json', '--fail-on', 'different'))
    assert found['identical'] >= REQUESTS - 1
    said('lerobot-serve', 'audit', bag)


def played(bag: Path, server, heard: dict[str, list], wait_until) -> None:
    """A server that knows nothing of the robot answers what was recorded."""
    wait_until(lambda: is_active(heard), 'the server serves', server)
    said('ros2', 'bag', 'play', bag, *PLAY, '--disable-keyboard-controls')
    wait_until(
        lambda: heard[STATUS][-1].requests >= REQUESTS - 1
        and len(heard[ANSWERS]) == heard[STATUS][-1].chunks == heard[STATUS][-1].requests,
        'each request is answered',
        server,
    )
    assert not heard[STATUS][-1].dropped
    assert server.interrupt() == 0, server.output
