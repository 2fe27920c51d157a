# SPDX-License-Identifier: Apache-2.0
"""A live server and robot are recorded or traced, and what was kept is asked again."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path
import time

from mcap.reader import make_reader
import pytest
from rclpy.serialization import deserialize_message
from support.nodes.recorder_process import recorder
from support.nodes.server_rig import SERVER, ServerRig
from support.nodes.small_client import SmallClient
import yaml

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.schema import Flag
from lerobot_serve.ros import qos
from lerobot_serve.tools.bags.message import CHUNK, OBSERVATION
from lerobot_serve.tools.bags.message import OPEN_SESSION as OPENED
from lerobot_serve.tools.bags.metadata import BagTopic
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve.tools.cli.main import main
from lerobot_serve_interfaces.msg import Observation
from lerobot_serve_interfaces.srv import OpenSession

KIND = 'recurrent'
SHAPE, OTHER = 'joints=6,chunk=30,cameras=,fps=30', 'joints=6,chunk=31,cameras=,fps=30'
SAME = ('--kind', KIND, '--policy', SHAPE, '--json')
REQUESTS = 12


@dataclass
class Bags:
    """
    Two bags of the same: the recorder of one was asked to end, that of the other was killed. From
    the request `first` on both hold all.
    """

    whole: Path
    killed: Path
    first: int = 0

    def each(self) -> tuple[Path, Path]:
        return self.whole, self.killed

    def kept(self, bag: Path, kind: str) -> list[bytes]:
        """Return the messages of the last requests."""
        return [raw for raw in of_type(bag, kind) if read_envelope(raw).header.seq >= self.first]


def record_twice(rig: ServerRig, folder: Path) -> Bags:
    """Let a robot ask while all is recorded twice."""
    rig.start(policy_kind=KIND, policy_path=SHAPE)
    robot = rig.client()
    bags = Bags(folder / 'whole', folder / 'killed')
    with recorder(bags.whole) as asked, recorder(bags.killed) as killed:
        for topic in (f'{SERVER}/observation', '/tester/action_chunk', f'{SERVER}/status'):
            rig.wait(lambda topic=topic: listeners(rig, topic) == 2, f'{topic} is recorded')
        rig.wait(lambda: robot.readers() >= 3, 'the robot has found server and recorders')
        bags.first = ask_until_recorded(rig, robot, bags) + 1
        for number in range(REQUESTS):
            episode, at = divmod(number, 4)
            flags = Flag.NONE if at else Flag.EPISODE_START
            last = robot.round_trip(episode=bags.first + episode, flags=flags).header.seq
        robot.close()
        rig.wait(lambda: last in answered(bags.killed), 'the last answer is in the file')
        killed.kill()
        assert asked.stop() == 0, asked.log
    return bags


def ask_until_recorded(rig: ServerRig, robot: SmallClient, bags: Bags) -> int:
    """
    Ask, an episode each time, until both bags hold an answer; return the last number. A recorder
    misses what is sent before the sender has found it, and the server does not tell when it has.
    """
    asked = 0

    def are_recorded() -> bool:
        nonlocal asked
        asked = robot.round_trip(episode=asked, flags=Flag.EPISODE_START).header.seq
        time.sleep(0.05)
        return all(answered(bag) for bag in bags.each())

    rig.wait(are_recorded, 'both recorders get answers')
    return asked


def listeners(rig: ServerRig, topic: str) -> int:
    """Return how many recorders listen."""
    found = rig.node.get_subscriptions_info_by_topic(topic)
    return sum(each.node_name == 'recorder' for each in found)


def of_type(path: Path, kind: str) -> list[bytes]:
    # a file is there a moment before its first bytes
    if not path.exists() or not path.stat().st_size:
        return []
    return [message.data for message in Bag(path).read() if message.type == kind]


def answered(bag: Path) -> list[int]:
    """Return the numbers of the requests whose answers are in the file of a recorder at work."""
    return [read_envelope(raw).header.seq for raw in of_type(bag / f'{bag.name}_0.mcap', CHUNK)]


def pairs(bag: Path) -> int:
    """Return how many requests are recorded with their answers."""
    asked, told = (
        {read_envelope(raw).header.seq for raw in of_type(bag, k)} for k in (OBSERVATION, CHUNK)
    )
    return len(asked & told)


def rewrite(bag: Path, into: Path, old: bytes, new: bytes) -> Path:
    """Write a bag anew with another message in the place of one."""
    writer = BagWriter(into)
    for message in Bag(bag).read():
        writer.add_topic(BagTopic(message.topic, message.type))
        writer.write(message._replace(data=new) if message.data == old else message)
    writer.close()
    return into


@pytest.mark.slow
def test_recorded_and_asked_again(rig, tmp_path, capsys):
    bags = record_twice(rig, tmp_path)
    look_at_messages(bags)
    look_at_metadata(bags.whole)

    def replay(*words: object) -> tuple[int, dict]:
        capsys.readouterr()
        status = main(['replay', *map(str, words)])
        return status, json.loads(capsys.readouterr().out)

    for bag in bags.each():
        status, found = replay(bag, *SAME, '--fail-on', 'different')
        assert (found['requests'], found['identical']) == (pairs(bag), pairs(bag))
        assert (status, found['is_other_policy']) == (0, False)
    status, found = replay(bags.whole, '--kind', KIND, '--policy', OTHER, '--json')
    assert (status, found['is_other_policy'], found['identical']) == (3, True, 0)

    # the highest byte of the last number of a chunk, which stands before the empty extensions
    old = bags.kept(bags.whole, CHUNK)[5]
    new = old[:-5] + bytes((old[-5] ^ 0x40,)) + old[-4:]
    status, found = replay(rewrite(bags.whole, tmp_path / 'flipped', old, new), *SAME)
    assert (status, found['identical'], found['beyond']) == (3, pairs(bags.whole) - 1, 1)
    play(rig, bags)


def look_at_messages(bags: Bags) -> None:
    """Both hold all; one of them says that it has no end."""
    for bag in bags.each():
        for kind in (OBSERVATION, CHUNK):
            assert len(bags.kept(bag, kind)) == REQUESTS
    whole, killed = Bag(bags.whole), Bag(bags.killed)
    assert f'{SERVER}/status' in {message.topic for message in whole.read()}
    assert whole.is_complete
    assert list(killed.read())
    assert 'no footer' in killed.damage[0]


def look_at_metadata(bag: Path) -> None:
    """What `ros2 bag info` shows, and what a reader without the packages needs."""
    content = yaml.safe_load((bag / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    topics = {
        topic['topic_metadata']['name']: topic['topic_metadata']
        for topic in content['topics_with_message_count']
    }
    status = topics[f'{SERVER}/status']
    assert status['type'] == 'lerobot_serve_interfaces/msg/ServerStatus'
    assert status['type_description_hash'].startswith('RIHS01_')
    (offered,) = status['offered_qos_profiles']
    assert (offered['reliability'], offered['durability']) == ('reliable', 'transient_local')
    with open(bag / 'whole_0.mcap', 'rb') as stream:
        schemas = make_reader(stream).get_summary().schemas.values()
        texts = {s.name.rpartition('/')[2]: s.data.decode() for s in schemas}
    assert '\nMSG: lerobot_serve_interfaces/RequestHeader\n' in texts['Observation']
    assert '\nMSG: service_msgs/ServiceEventInfo\n' in texts['OpenSession_Event']


def play(rig: ServerRig, bags: Bags) -> None:
    """
    As `ros2 bag play --publish-service-requests`: calls and bytes as they are. The recorders began
    behind the call.
    """
    events = [deserialize_message(raw, OpenSession.Event) for raw in of_type(bags.killed, OPENED)]
    *_, request = (event.request[0] for event in events if event.request)
    assert rig.ask(OpenSession, 'open_session', request).accepted
    robot = SmallClient(rig.node, SERVER)
    robot.wait_for_wiring()
    player = rig.node.create_publisher(
        Observation, f'{SERVER}/observation', qos.observation_writer(3.0, for_fleet=True)
    )
    rig.wait(player.get_subscription_count, 'the player is heard')
    recorded = (bags.kept(bags.killed, kind) for kind in (OBSERVATION, CHUNK))
    for raw, answer in zip(*recorded, strict=True):
        player.publish(raw)
        then, now = wire_chunk.decode(answer), robot.take()
        assert now.header == then.header
        assert now.robot.tobytes() == then.robot.tobytes()


TRACED = 8


def test_a_server_that_was_killed_is_asked_again(rig, tmp_path, capsys):
    folder = tmp_path / 'trace'
    process = rig.start(
        policy_kind=KIND, policy_path=SHAPE, trace_folder=folder, trace_images='full'
    )
    robot = rig.client()
    for number in range(TRACED):
        episode, at = divmod(number, 4)
        robot.round_trip(episode=episode, flags=Flag.NONE if at else Flag.EPISODE_START)
    rig.wait(
        lambda: sum(file.read_text().count('"replay":') for file in folder.iterdir()) == TRACED,
        'all requests are in the trace',
    )
    process.kill()
    same = ['replay', str(folder), '--kind', KIND, '--json']
    assert main([*same, '--policy', SHAPE, '--fail-on', 'different']) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told['identical'], told['requests']) == (TRACED, TRACED)
    assert main([*same, '--policy', OTHER]) == 3
