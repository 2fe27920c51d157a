# SPDX-License-Identifier: Apache-2.0
"""The thread that writes a bag, and the texts of the types in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
import threading

import pytest
from support.tools.bag_rig import texts

from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.metadata import (
    BagTopic,
    referenced_types,
    SEPARATOR,
    type_definition,
)
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.write_queue import (
    RecordingLimits,
    WriteQueue,
)
from lerobot_serve.tools.bags.writer import BagWriter

A = BagTopic('/a', 'std_msgs/msg/String')
LIMIT_S = 10.0


def heard(size: int = 1000) -> BagMessage:
    return BagMessage('/a', A.type, 1, bytes(size), 1)


def run(recording: WriteQueue) -> threading.Thread:
    thread = threading.Thread(target=recording.run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def writer(tmp_path) -> BagWriter:
    return BagWriter(tmp_path / 'bag')


def test_what_was_heard_before_the_end_is_written(writer):
    recording = WriteQueue(writer)
    recording.add(A)
    for message in texts(50):
        recording.put(message)
    recording.close()
    # what comes later is nobody's
    recording.put(heard())
    recording.run()
    bag = Bag(writer.folder)
    assert list(bag.read()) == texts(50)
    assert bag.is_complete
    assert (recording.failed, recording.dropped) == (False, 0)


def test_it_is_flushed_while_it_goes_on(writer, monkeypatch):
    flushed = threading.Event()
    flush = writer.flush

    def flush_and_tell() -> None:
        flush()
        if writer.contents.messages:
            flushed.set()

    monkeypatch.setattr(writer, 'flush', flush_and_tell)
    recording = WriteQueue(writer, flush_s=0.01)
    thread = run(recording)
    recording.add(A)
    recording.put(heard(10))
    assert flushed.wait(LIMIT_S)
    assert len(list(Bag(writer.path).read())) == 1
    recording.close()
    thread.join(LIMIT_S)


def test_it_ends_at_its_size(writer):
    ended = threading.Event()
    limits = RecordingLimits(size_bytes=3_000_000)
    recording = WriteQueue(writer, limits, on_end=ended.set, flush_s=0.01)
    recording.add(A)
    for _ in range(1000):
        recording.put(heard(10_000))
    run(recording)
    assert ended.wait(LIMIT_S)
    assert recording.ended == 'at 3 MB'
    assert 3_000_000 <= writer.path.stat().st_size < 5_000_000
    bag = Bag(writer.folder)
    assert len(list(bag.read())) == writer.contents.messages < 1000
    assert bag.is_complete


def test_it_ends_after_its_time(writer):
    ended = threading.Event()
    limits = RecordingLimits(duration_s=0.02)
    recording = WriteQueue(writer, limits, on_end=ended.set, flush_s=0.01)
    run(recording)
    assert ended.wait(LIMIT_S)
    assert recording.ended == 'after 0.02 s'


def test_what_is_too_much_is_counted(writer):
    recording = WriteQueue(writer, waiting_limit_bytes=2500)
    recording.add(A)
    for _ in range(5):
        recording.put(heard(1000))
    assert recording.dropped == 3
    recording.close()
    recording.run()
    assert len(list(Bag(writer.folder).read())) == 2


def test_a_full_disk_ends_it_and_leaves_what_was_written(writer, monkeypatch):
    ended = threading.Event()
    recording = WriteQueue(writer, on_end=ended.set, flush_s=0.01)
    room = [6000]
    write = os.write

    def write_until_full(handle: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, 'No space left on device')
        part = data[: room[0]]
        room[0] -= len(part)
        return write(handle, part)

    monkeypatch.setattr('lerobot_serve.tools.bags.writer.os.write', write_until_full)
    recording.add(A)
    thread = run(recording)
    while not ended.is_set():
        recording.put(heard(1000))
        ended.wait(0.02)
    thread.join(LIMIT_S)
    assert recording.failed
    assert recording.ended == f'{writer.folder} cannot be written: No space left on device'
    bag = Bag(writer.folder)
    found = list(bag.read())
    assert found
    assert all(message.data == bytes(1000) for message in found)
    # the half of a chunk was taken back
    (damage,) = bag.damage
    assert 'no footer' in damage


def test_no_room_for_the_metadata(writer, monkeypatch):
    def write_text(self: Path, text: str) -> int:
        self.write_bytes(text[:100].encode())
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(Path, 'write_text', write_text)
    recording = WriteQueue(writer)
    recording.add(A)
    recording.put(heard())
    recording.close()
    recording.run()
    assert recording.failed
    assert [file.name for file in writer.folder.iterdir()] == ['bag_0.mcap']
    bag = Bag(writer.folder)
    assert len(list(bag.read())) == 1
    assert bag.is_complete


# definitions

FILES = {
    'a/Outer': '# words\nstd/Head head\nInner[<=3] inners\nstring<=5 name "x"\nuint8 LOW=1\n',
    'a/Inner': 'float32[4] values 1.0\nOther one # Not this\n',
    'a/Other': 'bool yes\n',
    'std/Head': 'a/Other again\n',
    'service_msgs/ServiceEventInfo': 'uint8 event_type\n',
}
SERVICE = 'Other ask\n---\nuint8 LOW=0\nbool done\n'


@pytest.fixture
def share(tmp_path):
    for name, text in FILES.items():
        package, kind = name.split('/')
        folder = tmp_path / 'share' / package / 'msg'
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f'{kind}.msg').write_text(text)
    services = tmp_path / 'share/a/srv'
    services.mkdir()
    (services / 'Call.srv').write_text(SERVICE)
    (services / 'Empty.srv').write_text('---\n')

    def find(package: str) -> Path:
        if not (tmp_path / 'share' / package).is_dir():
            raise LookupError(package)
        return tmp_path / 'share' / package

    return find


def test_a_definition_holds_all_types_once(share):
    encoding, text = type_definition('a/msg/Outer', share)
    assert encoding == 'ros2msg'
    names = ('a/Inner', 'a/Other', 'std/Head')
    parts = [f'{SEPARATOR}\nMSG: {name}\n{FILES[name]}' for name in names]
    assert text == '\n'.join([FILES['a/Outer'], *parts])


def test_the_definition_of_a_service_event_is_made_of_its_service(share):
    encoding, text = type_definition('a/srv/Call_Event', share)
    assert encoding == 'ros2msg'
    root = 'service_msgs/ServiceEventInfo info\n'
    root += 'Call_Request[<=1] request\nCall_Response[<=1] response\n'
    parts = {
        'a/Call_Request': 'Other ask\n',
        'a/Other': FILES['a/Other'],
        'a/Call_Response': 'uint8 LOW=0\nbool done\n',
        'service_msgs/ServiceEventInfo': 'uint8 event_type\n',
    }
    assert text == '\n'.join(
        [root, *(f'{SEPARATOR}\nMSG: {name}\n{part}' for name, part in parts.items())]
    )
    assert type_definition('a/srv/Empty_Event', share)[1].count('Empty_Re') == 4


@pytest.mark.parametrize(
    'name', ['b/msg/Missing', 'a/msg/Missing', 'a/srv/Missing_Event', 'nonsense']
)
def test_what_is_not_installed_has_no_definition(share, name):
    assert type_definition(name, share) == ('unknown', '')


def test_types_are_known_from_constants_and_words():
    text = (
        'uint8 A=1\nfloat64 b\nstring C="x y"\nB[] many\nc/D one\nwstring w\n# E no\n\nbyte[2] z'
    )
    assert referenced_types(text, 'p/Q') == ['c/D', 'p/B']
