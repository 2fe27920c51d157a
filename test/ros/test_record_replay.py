"""A live server and robot are recorded, and what was recorded is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import json
from pathlib import Path
import signal
import subprocess
import time

from mcap.reader import make_reader
import pytest
from rclpy.serialization import serialize_message
from server_rig import SERVER, ServerRig
import yaml

from lerobot_serve.bags import told
from lerobot_serve.bags.message import CHUNK, OBSERVATION
from lerobot_serve.bags.metadata import Topic
from lerobot_serve.bags.reader import Bag
from lerobot_serve.bags.writer import BagWriter
from lerobot_serve.cli.main import main
from lerobot_serve.ros import qos
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.schema import Flag
from lerobot_serve_interfaces.msg import (
    EdgeState,
    ExecutedAction,
    Observation,
    RoutingDecision,
)

KIND = 'recurrent'
SHAPE, OTHER = 'joints=6,chunk=30,cameras=,fps=30', 'joints=6,chunk=31,cameras=,fps=30'
SAME = ('--kind', KIND, '--policy', SHAPE, '--json')
REQUESTS = 12
LIMIT_S = 30.0
# a recorder writes at least each second
RECORDED_S = 8.0


@dataclass
class Bags:
    """Two bags of the same: the recorder of one was asked to end, that of the other was killed."""

    whole: Path
    killed: Path


def drive(rig: ServerRig, folder: Path) -> Bags:
    """Let a robot ask while all is recorded twice, until neither recorder has missed anything."""
    rig.start(policy_kind=KIND, policy_path=SHAPE)
    for attempt in range(8):
        bags = record_twice(rig, folder / f'attempt_{attempt}')
        kept = [of_type(p, k) for p in (bags.whole, bags.killed) for k in (OBSERVATION, CHUNK)]
        if all(len(each) == REQUESTS for each in kept):
            return bags
    return pytest.fail('what is recorded has gaps, again and again')


def record_twice(rig: ServerRig, folder: Path) -> Bags:
    """
    Let a robot ask while all is recorded twice. A recorder misses what is sent before the sender
    has found it, and the sender does not tell when it has.
    """
    folder.mkdir()
    robot = rig.client()
    bags = Bags(folder / 'whole', folder / 'killed')
    with recorder(bags.whole) as asked, recorder(bags.killed) as killed:
        for topic in (f'{SERVER}/observation', '/tester/action_chunk', f'{SERVER}/status'):
            rig.wait(lambda topic=topic: listeners(rig, topic) == 2, f'{topic} is recorded')
        rig.wait(lambda: robot.readers() >= 3, 'the robot has found server and recorders')
        for number in range(REQUESTS):
            episode, at = divmod(number, 4)
            flags = Flag.NONE if at else Flag.EPISODE_START
            robot.round_trip(episode=episode, flags=flags)
        robot.close()
        until_told(lambda: REQUESTS in answered(bags.killed / 'killed_0.mcap'))
        killed.kill()
        asked.send_signal(signal.SIGINT)
        assert asked.wait(LIMIT_S) == 0
    return bags


def until_told(holds: Callable[[], bool]) -> None:
    """Wait until it holds, or until a recorder that was found too late will never hold it."""
    deadline = time.monotonic() + RECORDED_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


@contextmanager
def recorder(bag: Path) -> Iterator[subprocess.Popen]:
    """Give the process that records; it is ended whatever happens."""
    with open(bag.with_suffix('.log'), 'w') as log:
        process = subprocess.Popen(
            ['lerobot-serve', 'record', bag], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def listeners(rig: ServerRig, topic: str) -> int:
    """Return how many recorders listen."""
    found = rig.node.get_subscriptions_info_by_topic(topic)
    return sum(each.node_name == 'recorder' for each in found)


def of_type(path: Path, kind: str) -> list[bytes]:
    if not path.exists():
        return []
    return [message.data for message in Bag(path).read() if message.type == kind]


def answered(path: Path) -> list[int]:
    """Return the numbers of the requests whose answers are recorded."""
    return [wire_chunk.decode(raw).header.seq for raw in of_type(path, CHUNK)]


def rewrite(bag: Path, into: Path, old: bytes, new: bytes) -> Path:
    """Write a bag anew with another message in the place of one."""
    writer = BagWriter(into)
    for message in Bag(bag).read():
        writer.add_topic(Topic(message.topic, message.type))
        data, stamp_ns = new if message.data == old else message.data, message.stamp_ns
        writer.write(message.topic, data, received_ns=stamp_ns, sent_ns=stamp_ns)
    writer.close()
    return into


def test_recorded_and_asked_again(rig, tmp_path, capsys):
    bags = drive(rig, tmp_path)
    look_at_messages(bags)
    look_at_metadata(bags.whole)

    def replay(*words: object) -> tuple[int, dict]:
        capsys.readouterr()
        status = main(['replay', *map(str, words)])
        return status, json.loads(capsys.readouterr().out)

    for bag in (bags.whole, bags.killed):
        status, found = replay(bag, *SAME, '--fail-on', 'different')
        assert (found['requests'], found['identical']) == (REQUESTS, REQUESTS)
        assert (status, found['is_other_policy']) == (0, False)
    status, found = replay(bags.whole, '--kind', KIND, '--policy', OTHER, '--json')
    assert (status, found['is_other_policy'], found['identical']) == (3, True, 0)

    # the highest byte of the last number of a chunk, which stands before the empty extensions
    old = of_type(bags.whole, CHUNK)[5]
    new = old[:-5] + bytes((old[-5] ^ 0x40,)) + old[-4:]
    status, found = replay(rewrite(bags.whole, tmp_path / 'flipped', old, new), *SAME)
    assert (status, found['identical'], found['beyond']) == (3, REQUESTS - 1, 1)
    play(rig, bags.killed)


def look_at_messages(bags: Bags) -> None:
    """Both hold all; one of them says that it has no end."""
    for path in (bags.whole, bags.killed):
        assert len(of_type(path, OBSERVATION)) == len(of_type(path, CHUNK)) == REQUESTS
    whole, killed = Bag(bags.whole), Bag(bags.killed)
    assert f'{SERVER}/status' in {message.topic for message in whole.read()}
    assert whole.is_whole
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
    (text,) = [s.data.decode() for s in schemas if s.name.endswith('/Observation')]
    assert '\nMSG: lerobot_serve_interfaces/RequestHeader\n' in text


def play(rig: ServerRig, bag: Path) -> None:
    """As `ros2 bag play`: the bytes as they are, to a server in which the session is open."""
    robot = rig.client()
    player = rig.node.create_publisher(
        Observation, f'{SERVER}/observation', qos.observation_out(3.0, of_many=True)
    )
    rig.wait(player.get_subscription_count, 'the player is heard')
    for raw, answer in zip(of_type(bag, OBSERVATION), of_type(bag, CHUNK), strict=True):
        player.publish(raw)
        then, now = wire_chunk.decode(answer), robot.take()
        assert now.header == then.header
        assert now.robot.tobytes() == then.robot.tobytes()


def test_what_the_audit_reads_are_the_messages():
    action = ExecutedAction(
        tick=1 << 40,
        seq=3,
        session_epoch=4,
        episode=5,
        chunk_row=6,
        age_s=0.5,
        verdict=ExecutedAction.HELD,
        rung=EdgeState.RUNG_SAFE_POSE,
        client_id='robot',
        episode_id='ep',
        slot='a',
        policy='p@1',
        reason='why',
        raw=[1.0, 2.0],
        commanded=[3.0],
    )
    read = told.executed(serialize_message(action))
    names = ('tick', 'seq', 'session_epoch', 'episode', 'chunk_row', 'age_s', 'client_id')
    names += ('episode_id', 'slot', 'policy', 'reason')
    assert [getattr(read, n) for n in names] == [getattr(action, n) for n in names]
    assert (read.verdict, read.rung) == ('held', 'safe_pose')
    assert (read.raw.tolist(), read.commanded.tolist()) == ([1.0, 2.0], [3.0])

    state = EdgeState(
        client_id='robot',
        server='/s',
        episode_id='ep',
        task='t',
        slot='b',
        policy='p',
        state=EdgeState.DEAD,
        rung=EdgeState.RUNG_STOP_SERVICE,
        paused=True,
        reason='why',
    )
    expected = told.EdgeState('robot', 'ep', 'dead', 'stop_service', 'why')
    assert told.state(serialize_message(state)) == expected

    fields = {
        'client_id': 'robot',
        'episode_id': 'ep',
        'routing_key': 'key',
        'bucket': 99,
        'split_percent': 80,
        'slot': 'b',
        'policy': 'p@1',
        'server': '/s',
        'degraded': False,
        'cached': True,
        'moved': True,
        'reason': 'why',
    }
    decision = RoutingDecision(**fields)
    assert told.decision(serialize_message(decision)) == told.RoutingDecision(**fields)
