# SPDX-License-Identifier: Apache-2.0
"""A bag holds what passes over Zenoh, and what was recorded is asked again."""

from __future__ import annotations

import json
from pathlib import Path
import signal
import subprocess
from typing import Any

import pytest
from rclpy.serialization import deserialize_message
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.tools.bags.message import CHUNK, OBSERVATION
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.recording.node import message_class
from lerobot_serve.tools.bags.request_pairs import RequestPairer
from lerobot_serve.tools.bags.service_events import is_service_event, SessionIndex
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.processes.node_processes import executable_path
from lerobot_serve.tools.processes.parent_death import end_with_parent
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings

SHAPE = 'joints=6,chunk=60,cameras=,fps=30'


@pytest.fixture
def link() -> str:
    """The test sets the link itself."""
    return 'ros'


def test_what_passes_over_zenoh_is_recorded_and_replayed(edge_rig, tmp_path, capsys):
    endpoint, bag = free_endpoint(), tmp_path / 'bag'
    edge_rig.start_server(policy_path=SHAPE, zenoh_listen=[endpoint])
    command = [str(executable_path('lerobot-serve')), 'record', str(bag), '--connect', endpoint]
    with (tmp_path / 'record.log').open('w') as log:
        recorder = subprocess.Popen(end_with_parent(command), stdout=log, stderr=log)
    try:
        edge_rig.wait((bag / 'bag_0.mcap').exists, 'the bag is there')
        edge = edge_rig.start(link='zenoh', zenoh_connect=[endpoint])
        edge_rig.wait_for_play(90)
        edge_rig.stop(edge)
    finally:
        recorder.send_signal(signal.SIGINT)
        status = recorder.wait(30)
    assert status == 0, (tmp_path / 'record.log').read_text()
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


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (['--keys', 'keys'], '--keys and --site are of --connect'),
        (['--site', 'lab'], '--keys and --site are of --connect'),
        (['--connect', 'here'], "'here' is no Zenoh endpoint"),
        (['--connect', 'tcp/127.0.0.1:1'], 'does not open'),
    ],
)
def test_what_cannot_be_recorded_is_one_sentence(tmp_path, options, said):
    command = [str(executable_path('lerobot-serve')), 'record', str(tmp_path / 'bag'), *options]
    done = subprocess.run(end_with_parent(command), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert said in done.stderr
    assert 'Traceback' not in done.stderr
    assert not (tmp_path / 'bag').exists()


def check_session_calls(bag: Path) -> None:
    """The calls over Zenoh are in the bag as the introspection of ROS 2 has those over ROS 2."""
    messages = list(Bag(bag).read())
    index = SessionIndex()
    for message in messages:
        index.add(message)
    events: dict[str, list[Any]] = {}
    for message in messages:
        if is_service_event(message.topic, message.type):
            event = deserialize_message(message.data, message_class(message.type))
            events.setdefault(message.topic, []).append(event)
    opened = events['/policy_server/open_session/_service_event']
    assert [each.info.event_type for each in opened] == [1, 2]
    request, response = opened[0].request[0], opened[1].response[0]
    assert (request.client_id, response.accepted) == ('robot_1', True)
    assert index.find('robot_1', request.session_epoch).robot_type == request.robot_type
    (stopped, _) = events['/policy_server/close_session/_service_event']
    assert stopped.request[0].session_epoch == request.session_epoch


def test_a_bag_that_exists_is_refused_beside_a_connection(tmp_path):
    endpoint = free_endpoint()
    held = ZenohLink(ZenohSettings(listen=(endpoint,)))
    folder = tmp_path / 'bag'
    folder.mkdir()
    command = [str(executable_path('lerobot-serve')), 'record', str(folder), '--connect', endpoint]
    try:
        done = subprocess.run(end_with_parent(command), capture_output=True, text=True, timeout=60)
    finally:
        held.close()
    assert (done.returncode, list(folder.iterdir())) == (1, [])
    assert 'exists already; name a new folder' in done.stderr
