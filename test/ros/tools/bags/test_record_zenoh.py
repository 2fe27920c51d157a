# SPDX-License-Identifier: Apache-2.0
"""A bag holds what passes over Zenoh, and what was recorded is asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rclpy.serialization import deserialize_message
from support.network.ports import free_port
from support.nodes.recorder_process import recorder
from support.nodes.zenoh_links import free_endpoint
from support.zenoh.access_rig import Keys, SITE

from lerobot_serve.tools.bags.message import (
    CHUNK,
    is_service_event,
    OBSERVATION,
    OPEN_SESSION,
    read_open_session,
)
from lerobot_serve.tools.bags.node import message_class
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.request_pairs import RequestPairer
from lerobot_serve.tools.cli.main import main
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings

SHAPE = 'joints=6,chunk=60,cameras=,fps=30'


@pytest.fixture
def link() -> str:
    """The test sets the link itself."""
    return 'ros'


class Site:
    """The parameters of nodes and recorder, without keys or with them."""

    def __init__(self, endpoint: str, folder: Path | None) -> None:
        self.server: dict[str, object] = {'zenoh_listen': [endpoint]}
        self.robot: dict[str, object] = {'zenoh_connect': [endpoint]}
        self.options = ['--connect', endpoint]
        if folder:
            keys = Keys(folder)
            robot, recorder = keys.add('robot', 'robot_1'), keys.add('recorder', 'desk')
            server = keys.add('server', '/policy_server', direct=True)
            self.server |= {'zenoh_site': SITE, 'zenoh_keys': server}
            self.robot |= {'zenoh_site': SITE, 'zenoh_keys': robot, 'client_id': 'robot_1'}
            self.options += ['--site', SITE, '--keys', str(recorder)]


@pytest.mark.slow
@pytest.mark.parametrize('has_keys', [False, True], ids=['open', 'keys'])
def test_what_passes_over_zenoh_is_recorded_and_replayed(edge_rig, tmp_path, capsys, has_keys):
    protocol, bag = 'tls/localhost' if has_keys else 'tcp/127.0.0.1', tmp_path / 'bag'
    site = Site(f'{protocol}:{free_port()}', tmp_path / 'keys' if has_keys else None)
    edge_rig.start_server(policy_path=SHAPE, trace_folder=tmp_path / 'server_trace', **site.server)
    with recorder(bag, *site.options) as process:
        # the first call of a session is recorded, too
        edge_rig.wait(lambda: 'what passes over Zenoh' in process.log, 'the recorder hears Zenoh')
        edge = edge_rig.start(link='zenoh', trace_folder=tmp_path / 'trace', **site.robot)
        edge_rig.wait_for_play(90)
        edge_rig.stop(edge)
        assert process.stop() == 0, process.log
    check_no_secret_left_its_folder(tmp_path)
    kinds = {message.topic: message.type for message in Bag(bag).read()}
    assert kinds['/policy_server/observation'] == OBSERVATION
    assert kinds['/robot_1/action_chunk'] == CHUNK
    check_session_calls(bag)
    # topics of ROS 2 beside them
    assert any(topic.endswith('/executed_action') for topic in kinds)
    pairs = list(RequestPairer().join(Bag(bag).read()))
    assert len(pairs) >= 2
    assert main(['replay', str(bag), '--kind', 'null', '--policy', SHAPE, '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    # an error reply, on a busy machine, is none to compare
    assert 0 < found['requests'] == found['identical'] <= len(pairs)


def refused(bag: Path, *options: str) -> str:
    """Return what a recorder says that does not begin."""
    with recorder(bag, *options) as process:
        assert process.process.wait(60) == 1
    assert 'Traceback' not in process.log
    return process.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (['--keys', 'keys'], '--keys and --site are of --connect'),
        (['--site', 'lab'], '--keys and --site are of --connect'),
        (['--connect', 'here'], "'here' is not a Zenoh endpoint"),
        (['--connect', 'tcp/127.0.0.1:1'], 'does not open'),
    ],
)
def test_what_cannot_be_recorded_is_one_sentence(tmp_path, options, said):
    assert said in refused(tmp_path / 'bag', *options)
    assert not (tmp_path / 'bag').exists()


def test_the_key_of_an_operator_records_nothing_and_says_so(tmp_path):
    operator = Keys(tmp_path / 'keys').add('operator', 'desk')
    bag, connect = tmp_path / 'bag', ['--connect', 'tls/localhost:1', '--site', SITE]
    said = refused(bag, *connect, '--keys', str(operator))
    assert 'has the key operator.desk, which may not hear' in said
    assert 'lerobot-serve keys recorder NAME' in said
    assert not bag.exists()


def check_no_secret_left_its_folder(folder: Path) -> None:
    """No line of a private key is in a bag, trace or log; the parts of a bag are compressed."""
    lines = {
        line
        for file in folder.rglob('key.pem')
        for line in file.read_bytes().splitlines()
        if b'-----' not in line
    }
    written = [
        path
        for path in folder.rglob('*')
        if path.is_file() and (folder / 'keys') not in path.parents
    ]
    assert bool(lines) == (folder / 'keys').exists()
    assert {path.suffix for path in written} >= {'.mcap', '.jsonl', '.log'}
    contents = {path: path.read_bytes() for path in written if path.suffix != '.mcap'}
    for path in written:
        if path.suffix == '.mcap':
            contents[path] = b''.join(bytes(each.data) for each in Bag(path.parent).read())
    for path, content in contents.items():
        assert not [line for line in lines if line in content], path


def check_session_calls(bag: Path) -> None:
    """The calls over Zenoh are in the bag as the introspection of ROS 2 has those over ROS 2."""
    messages = list(Bag(bag).read())
    events: dict[str, list[Any]] = {}
    for message in messages:
        if is_service_event(message.topic, message.type):
            event = deserialize_message(message.data, message_class(message.type))
            events.setdefault(message.topic, []).append(event)
    opened = events['/policy_server/open_session/_service_event']
    assert [each.info.event_type for each in opened] == [1, 2]
    request, response = opened[0].request[0], opened[1].response[0]
    assert (request.client_id, response.accepted) == ('robot_1', True)
    asked = (read_open_session(m.data) for m in messages if m.type == OPEN_SESSION)
    assert [each.robot_type for each in asked if each] == [request.robot_type]
    (stopped, _) = events['/policy_server/close_session/_service_event']
    assert stopped.request[0].session_epoch == request.session_epoch


def test_a_bag_that_exists_is_refused_beside_a_connection(tmp_path):
    endpoint = free_endpoint()
    held = ZenohLink(ZenohSettings(listen=(endpoint,)))
    folder = tmp_path / 'bag'
    folder.mkdir()
    try:
        said = refused(folder, '--connect', endpoint)
    finally:
        held.close()
    assert 'exists already; name a new folder' in said
    assert not list(folder.iterdir())
