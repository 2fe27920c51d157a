# SPDX-License-Identifier: Apache-2.0
"""What is written into a bag is read from it, also after a kill, over Zenoh, and of the demo."""

from __future__ import annotations

from collections import defaultdict
import hashlib
import json
from pathlib import Path
import shutil
import tempfile
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import lz4.frame
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, Schema
from mcap.records import Message as McapMessage
from mcap.writer import CompressionType, Writer
import msgspec
import numpy as np
import pytest
from support.golden import FOLDER, Golden
from support.tools.bag_rig import begin, texts, write, write_sqlite
import yaml
import zenoh
import zstandard

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.names import is_topic
from lerobot_serve.tools.bags.mcap_file import MAGIC
from lerobot_serve.tools.bags.message import BagError, BagMessage
from lerobot_serve.tools.bags.metadata import BagTopic, OfferedProfile
from lerobot_serve.tools.bags.reader import Bag, is_bag
from lerobot_serve.tools.bags.request_pairs import is_no_second_draw, is_robot_reply_topic
from lerobot_serve.tools.bags.zenoh_recording import recorded_key, selectors, SERVICES
from lerobot_serve.zenoh.keys import PURPOSES, Role, ServerKeys
from lerobot_serve.zenoh.server_endpoint import RECORDED

NAMES = st.from_regex(r'(/[a-z][a-z0-9_]{0,9}){1,3}', fullmatch=True)
STAMPS = st.integers(0, (1 << 63) - 1)


@st.composite
def some_messages(draw: st.DrawFn) -> list[BagMessage]:
    """Draw messages of a few topics, each of one type."""
    topics = draw(st.dictionaries(NAMES, st.sampled_from(['a/msg/B', 'c/msg/D']), min_size=1))
    name = st.sampled_from(sorted(topics))
    drawn = draw(st.lists(st.tuples(name, STAMPS, st.binary(max_size=200)), max_size=40))
    return [
        BagMessage(topic, topics[topic], stamp_ns, data, stamp_ns)
        for topic, stamp_ns, data in drawn
    ]


def read_all(path: Path) -> tuple[list[BagMessage], list[str]]:
    bag = Bag(path)
    return list(bag.read()), bag.damage


@settings(max_examples=30, deadline=None)
@given(messages=some_messages(), every=st.integers(1, 50))
def test_what_is_written_is_read(messages, every):
    with tempfile.TemporaryDirectory() as folder:
        bag = write(Path(folder) / 'bag', messages, every=every)
        assert read_all(bag) == (messages, [])
        # the folder and its file are one
        assert read_all(bag / 'bag_0.mcap') == (messages, [])


def test_plain_mcap_reads_it(tmp_path):
    messages = texts(20) + texts(5, '/b', 5000)
    file = write(tmp_path / 'bag', messages, every=7) / 'bag_0.mcap'
    with open(file, 'rb') as stream:
        reader = make_reader(stream, validate_crcs=True)
        assert reader.get_header().profile == 'ros2'
        found = [
            BagMessage(
                channel.topic, schema.name, message.log_time, message.data, message.publish_time
            )
            for schema, channel, message in reader.iter_messages()
        ]
        assert found == messages
        summary = reader.get_summary()
        (about,) = [each.metadata for each in reader.iter_metadata() if each.name == 'rosbag2']
    assert {schema.encoding for schema in summary.schemas.values()} == {'ros2msg'}
    assert {channel.message_encoding for channel in summary.channels.values()} == {'cdr'}
    offered = yaml.safe_load(summary.channels[1].metadata['offered_qos_profiles'])
    assert offered == [msgspec.to_builtins(OfferedProfile())]
    assert yaml.safe_load(about['serialized_metadata'])['message_count'] == 25


def test_metadata_of_the_folder(tmp_path):
    bag = write(tmp_path / 'bag', texts(20) + texts(5, '/b', 5000))
    content = yaml.safe_load((bag / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    assert content['version'] == 9
    assert content['storage_identifier'] == 'mcap'
    assert content['relative_file_paths'] == ['bag_0.mcap']
    assert content['starting_time'] == {'nanoseconds_since_epoch': 1000}
    assert content['duration'] == {'nanoseconds': 4004}
    counts = {
        topic['topic_metadata']['name']: topic['message_count']
        for topic in content['topics_with_message_count']
    }
    assert counts == {'/a': 20, '/b': 5}
    (offered,) = content['topics_with_message_count'][0]['topic_metadata']['offered_qos_profiles']
    for_ever = {'sec': 9223372036, 'nsec': 854775807}
    assert offered == {
        'history': 'keep_last',
        'depth': 10,
        'reliability': 'reliable',
        'durability': 'volatile',
        'deadline': for_ever,
        'lifespan': for_ever,
        'liveliness': 'automatic',
        'liveliness_lease_duration': for_ever,
        'avoid_ros_namespace_conventions': False,
    }


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    bag = write(tmp_path / 'bag', texts(3))
    before = (bag / 'bag_0.mcap').read_bytes()
    with pytest.raises(BagError, match='exists already'):
        begin(bag, [])
    assert (bag / 'bag_0.mcap').read_bytes() == before


# recorders that were killed, files that were cut or damaged


def test_cut_at_every_chunk(tmp_path):
    messages = texts(12)
    writer = begin(tmp_path / 'bag', [])
    ends = []
    writer.add_topic(BagTopic('/a', messages[0].type))
    for message in messages:
        stamp_ns = message.stamp_ns
        writer.write(message._replace(topic='/a', stamp_ns=stamp_ns, sent_ns=stamp_ns))
        writer.flush()
        ends.append(writer.size_bytes)
    writer.close()
    whole = writer.path.read_bytes()
    for count, end in enumerate(ends, 1):
        file = tmp_path / f'cut_{count}.mcap'
        file.write_bytes(whole[:end])
        found, damage = read_all(file)
        assert found == messages[:count]
        assert len(damage) == 1
        assert 'no footer' in damage[0]


def test_killed_before_its_end(tmp_path):
    messages = texts(12)
    begin(tmp_path / 'bag', messages, every=5)
    found, damage = read_all(tmp_path / 'bag')
    assert found == messages[:10]
    assert 'no footer' in damage[0]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_cut_anywhere(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / 'cut_anywhere'
    messages = texts(12)
    if not folder.exists():
        write(folder, messages, every=3)
    whole = (folder / 'cut_anywhere_0.mcap').read_bytes()
    end = data.draw(st.integers(8, len(whole)))
    cut = folder.parent / 'cut.mcap'
    cut.write_bytes(whole[:end])
    found, damage = read_all(cut)
    assert found == messages[: len(found)]
    assert len(found) % 3 == 0
    if found != messages:
        assert damage


def test_a_footer_that_is_not_at_the_end_is_damage(tmp_path):
    write(tmp_path / 'footer', texts(12), every=3)
    file = tmp_path / 'footer' / 'footer_0.mcap'
    whole = bytearray(file.read_bytes())
    whole[8] = Opcode.FOOTER
    file.write_bytes(whole)
    found, damage = read_all(file)
    assert not found
    assert 'has a footer at byte 8' in damage[0]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_one_byte_is_wrong(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / 'one_byte'
    messages = texts(12)
    if not folder.exists():
        write(folder, messages, every=3)
    whole = bytearray((folder / 'one_byte_0.mcap').read_bytes())
    at = data.draw(st.integers(8, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    wrong = folder.parent / 'wrong.mcap'
    wrong.write_bytes(whole)
    found, damage = read_all(wrong)
    # nothing is invented, and what is missing is said
    assert set(found) <= set(messages)
    if found != messages:
        assert damage


# what is a bag


def test_sqlite(tmp_path):
    messages = texts(9) + texts(4, '/b', 1003)
    # this storage has no source timestamps
    without = [message._replace(sent_ns=0) for message in messages]
    in_order = sorted(without, key=lambda message: message.stamp_ns)
    file = write_sqlite(tmp_path / 'bag_0.db3', messages)
    assert read_all(file) == (in_order, [])
    assert read_all(tmp_path) == (in_order, [])


@pytest.mark.parametrize(
    ('name', 'content', 'said'),
    [
        ('x.mcap', b'not one at all', 'is not an MCAP file'),
        ('x.db3', b'not one at all' * 100, 'cannot be read as a bag'),
        ('x.mcap.zstd', b'x', 'unpack it first'),
        ('x.txt', b'x', 'is not a bag'),
        ('x.jsonl', b'x', 'is not a bag'),
        ('x', b'x', 'is not a bag'),
        ('gone.mcap', None, 'does not exist'),
        ('.', None, 'is not a bag'),
    ],
)
def test_what_is_no_bag_is_refused(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BagError, match=said):
        read_all(tmp_path / name)


def test_several_files_in_the_order_of_their_numbers(tmp_path):
    for number in (0, 2, 10):
        bag = write(tmp_path / f'one_{number}', texts(2, begin_ns=number * 10))
        shutil.copy(bag / f'one_{number}_0.mcap', tmp_path / f'many_{number}.mcap')
    (tmp_path / 'many').mkdir()
    for file in tmp_path.glob('many_*.mcap'):
        file.rename(tmp_path / 'many' / file.name)
    found, _ = read_all(tmp_path / 'many')
    assert [message.stamp_ns for message in found] == [0, 1, 20, 21, 100, 101]


def test_a_file_that_was_unpacked_beside_the_compressed_one_is_read(tmp_path):
    (tmp_path / 'bag_0.db3.zstd').write_bytes(b'packed')
    with pytest.raises(BagError, match=r'unpack it first: zstd -d bag_0\.db3\.zstd'):
        Bag(tmp_path)
    write_sqlite(tmp_path / 'bag_0.db3', texts(2))
    assert len(list(Bag(tmp_path).read())) == 2


def test_what_is_no_bag_says_what_to_name(tmp_path):
    assert not is_bag(tmp_path)
    (tmp_path / 'day/run_0').mkdir(parents=True)
    write_sqlite(tmp_path / 'day/run_0/bag_0.db3', texts(2))
    with pytest.raises(BagError, match=r'name the bags in it: .*/day/\*'):
        Bag(tmp_path / 'day')
    old = tmp_path / 'old.bag'
    old.write_bytes(b'#ROSBAG V2.0')
    with pytest.raises(BagError, match='of ROS 1; convert it first: rosbags-convert'):
        Bag(old)


def test_messages_that_are_compressed_one_by_one(tmp_path):
    write_sqlite(tmp_path / 'bag_0.db3', texts(2))
    text = 'rosbag2_bagfile_information: {compression_mode: MESSAGE}'
    (tmp_path / 'metadata.yaml').write_text(text)
    with pytest.raises(BagError, match='ros2 bag convert'):
        Bag(tmp_path)


# sizes that a file names, and those that it has


@pytest.mark.parametrize('size', [10, 0])
@pytest.mark.parametrize('compression', ['zstd', 'zstd without a size', 'lz4'])
def test_a_chunk_is_unpacked_to_the_size_that_it_names_and_no_further(tmp_path, compression, size):
    content = bytes(10_000_000)
    packed = {
        'zstd': zstandard.compress,
        'zstd without a size': zstandard.ZstdCompressor(write_content_size=False).compress,
        'lz4': lz4.frame.compress,
    }[compression](content)
    file = chunk_file(tmp_path / 'x.mcap', compression.split()[0], packed, size)
    # whatever imports while it reads
    read_all(file)
    tracemalloc.start()
    found, damage = read_all(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not found
    assert 'is damaged' in damage[0]
    assert peak < 2 * len(packed) + 1_000_000


def test_many_small_messages_of_a_chunk_are_not_held_at_once(tmp_path):
    builder = RecordBuilder()
    Schema(data=b'', encoding='', id=1, name='a/msg/B').write(builder)
    Channel(id=1, message_encoding='cdr', metadata={}, schema_id=1, topic='/a').write(builder)
    for number in range(10_000):
        McapMessage(1, number, b'', number, number).write(builder)
    content = builder.end()
    packed = zstandard.compress(content)
    file = chunk_file(tmp_path / 'x.mcap', 'zstd', packed, len(content))
    tracemalloc.start()
    assert sum(1 for _ in Bag(file).read()) == 10_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(content)


def chunk_file(path: Path, compression: str, packed: bytes, size: int) -> Path:
    """Write a file with one chunk that names this size."""
    builder = RecordBuilder()
    chunk = Chunk(
        compression=compression,
        data=packed,
        message_end_time=0,
        message_start_time=0,
        uncompressed_crc=0,
        uncompressed_size=size,
    )
    chunk.write(builder)
    path.write_bytes(MAGIC + builder.end())
    return path


@pytest.mark.parametrize('text', ['[' * 2000, '{"a": ' * 2000], ids=['list', 'table'])
def test_metadata_that_is_nested_without_end_says_nothing(tmp_path, text):
    write_sqlite(tmp_path / 'bag_0.db3', texts(2))
    (tmp_path / 'metadata.yaml').write_text(text)
    assert len(list(Bag(tmp_path).read())) == 2


def test_metadata_whose_text_would_be_endless_says_nothing(tmp_path):
    write_sqlite(tmp_path / 'bag_0.db3', texts(2))
    # each name stands for ten of the one before
    names = ['x', *(f'[{", ".join([f"*a{number}"] * 10)}]' for number in range(7))]
    lines = [f'n{number}: &a{number} {value}' for number, value in enumerate(names)]
    lines += ['rosbag2_bagfile_information: {compression_mode: *a7}']
    (tmp_path / 'metadata.yaml').write_text('\n'.join(lines))
    tracemalloc.start()
    assert len(list(Bag(tmp_path).read())) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize('compression', list(CompressionType))
@pytest.mark.parametrize('use_chunking', [True, False])
def test_bags_of_others(tmp_path, compression, use_chunking):
    messages = texts(30)
    file = tmp_path / 'x.mcap'
    writer = Writer(str(file), chunk_size=300, compression=compression, use_chunking=use_chunking)
    writer.start('ros2')
    schema = writer.register_schema(messages[0].type, 'ros2msg', b'string data')
    channel = writer.register_channel('/a', 'cdr', schema)
    for message in messages:
        writer.add_message(channel, message.stamp_ns, message.data, message.stamp_ns)
    writer.finish()
    assert read_all(file) == (messages, [])


SERVER = ServerKeys('lab', '/a/policy_server')
ROBOT, ROUTER = SERVER.client(Role.ROBOT, 'robot 1'), SERVER.client(Role.ROUTER, '/policy_router')
WANTED = [
    ROBOT.observation,
    ROUTER.observation,
    ROBOT.no_session,
    ROBOT.reply(7),
    *(ROUTER.reply(7, purpose) for purpose in PURPOSES),
    *(ROBOT.event(service) for service in SERVICES),
]


@pytest.mark.parametrize('key', WANTED)
def test_requests_and_replies_are_recorded_as_topics(key):
    assert sum(zenoh.KeyExpr(each).includes(key) for each in selectors('lab')) == 1
    assert not any(zenoh.KeyExpr(each).intersects(key) for each in selectors('hall'))
    recorded = recorded_key(key)
    assert is_topic(recorded.topic)
    assert recorded.kind.endswith('/Observation') == key.endswith('/observation')


@pytest.mark.parametrize(
    'key', [SERVER.alive, SERVER.status, ROBOT.alive, ROBOT.service('open_session')]
)
def test_nothing_else_is(key):
    assert not any(zenoh.KeyExpr(each).intersects(key) for each in selectors('lab'))


def test_any_client_gives_a_topic_of_a_known_kind():
    for client in ('Lab 3/arm #2', 'ü', '...', 'a' * 300):
        for role in Role:
            keys = SERVER.client(role, client)
            assert all(map(recorded_key, (keys.observation, keys.no_session, keys.reply(1))))
    assert recorded_key(f'{ROBOT.prefix}/event/capture') is None


def test_each_recorded_service_is_published():
    assert tuple(SERVICES) == RECORDED


def test_the_topics_are_those_of_ros():
    assert recorded_key(ROBOT.observation).topic == '/a/policy_server/observation'
    assert recorded_key(ROUTER.reply(7)).topic.startswith('/policy_router/replies/a_policy_server')
    assert recorded_key(ROUTER.reply(7, 'shadow')).topic == '/policy_router/replies/shadow'
    assert is_robot_reply_topic(recorded_key(ROBOT.reply(7)).topic)
    assert not is_robot_reply_topic(recorded_key(ROUTER.reply(7)).topic)
    assert not is_no_second_draw(recorded_key(ROUTER.reply(7, 'second_draw')).topic)


FEW_VALUES = 16
# of the serving acts, and of the learning ones: corrections of a person, and pictures
both_bags = pytest.mark.parametrize('name', ['demo', 'learning'])


@pytest.mark.golden
@both_bags
def test_each_message_of_the_demo_is_read_as_before(golden: Golden, name: str):
    bag, raw, shown = Bag(FOLDER / 'bags' / name), defaultdict(list), []
    for message in bag.read():
        raw[message.topic].append(message)
    for topic, messages in sorted(raw.items()):
        texts = [shown_as(each.record()) for each in messages if own(each.type)]
        digest = hashlib.sha256('\n'.join(texts).encode()).hexdigest()[:16]
        shown += [f'{topic}: {len(messages)} messages, {messages[0].type}, {digest}', *texts[-1:]]
    assert bag.is_complete
    golden.holds(f'bags/{name}.txt', '\n'.join(shown) + '\n')


@both_bags
def test_each_message_of_the_demo_is_written_as_it_was_read(name: str):
    for message in Bag(FOLDER / 'bags' / name).read():
        if own(message.type):
            found = message.record()
            # not of the same bytes: the middleware leaves what it likes between the fields
            again = message._replace(data=encode(found)).record()
            assert shown_as(again) == shown_as(found), message.topic


def shown_as(record: object) -> str:
    return json.dumps(msgspec.to_builtins(record, enc_hook=shown_array), indent=1)


def shown_array(values: np.ndarray) -> object:
    """Return few values as they are, and those of a picture or a chunk by their digest."""
    if values.size <= FEW_VALUES:
        return values.tolist()
    return f'{values.dtype} {values.shape} {hashlib.sha256(values.tobytes()).hexdigest()[:16]}'


def own(kind: str) -> bool:
    return kind.startswith('lerobot_serve_interfaces/msg/')
