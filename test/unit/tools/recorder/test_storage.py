# SPDX-License-Identifier: Apache-2.0
"""The folder of a recorder: cut bags are completed, one recorder at a time, a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
import pytest
from support.tools.recorder_rig import bags, JOINTS, JOINTS_TYPE, messages, RecorderRig
import yaml

from lerobot_serve.tools.bags.message import BagError, BagMessage, EXECUTED
from lerobot_serve.tools.bags.metadata import (
    BagTopic,
    Duration,
    OfferedProfile,
    profiles_as_yaml,
    profiles_from_yaml,
)
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.write_queue import WriteQueue
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve.tools.recorder.bag_folder import BagFolder
from lerobot_serve.tools.recorder.options import RecordingRules, STRATEGIES
from lerobot_serve.tools.recorder.settings import make_writer, RecorderSettings

TOPIC = BagTopic('/a', 'std_msgs/msg/String')
WRITE = 'lerobot_serve.tools.bags.writer.os.write'


def record(root: Path, source: str = 'policy') -> RecorderRig:
    """Record a whole episode and one that is being written."""
    rig = RecorderRig(root)
    rig.run('whole')
    rig.judge('whole')
    rig.run('cut', 20, source=source)
    rig.writer.flush()
    return rig


@pytest.mark.parametrize('source', ['policy', 'person'])
def test_a_cut_episode_is_completed(tmp_path, source):
    rig = record(tmp_path, source)
    rig.kill()
    (before,) = tmp_path.glob('*.recording')
    written = [each.data for each in Bag(before).read()]
    folder = BagFolder(tmp_path)
    cut, _ = bags(tmp_path)
    assert [(each.folder, each.is_kept) for each in folder.recovered] == [(cut, True)]
    assert [each.data for each in messages(cut)] == written
    assert len(list(messages(cut, EXECUTED))) == 20
    about = yaml.safe_load((cut / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    assert about['message_count'] == len(written)
    assert about['relative_file_paths'] == [f'{cut.name}_0.mcap']
    found = json.loads((cut / 'intervals.json').read_text())
    assert (found['ended'], found['episode_id']) == ('recorder killed', 'cut')
    assert [(each['source'], each['first_step']) for each in found['intervals']] == [(source, 6)]
    # nothing is left to do
    folder.close()
    assert not BagFolder(tmp_path).recovered


def test_the_first_outcome_of_a_cut_episode_counts_and_its_steps_and_policies(tmp_path):
    rig = RecorderRig(tmp_path)
    rig.run('ep', 3)
    rig.run('ep', 2, source='person', policy='')
    rig.run('ep', 1, policy='q@2')
    rig.judge('ep', 'failure')
    rig.judge('ep', 'success')
    rig.writer.flush()
    rig.kill()
    BagFolder(tmp_path).close()
    (bag,) = bags(tmp_path)
    about = json.loads((bag / 'intervals.json').read_text())
    # as if it had ended
    assert about['outcome'] == 'failure'
    assert (about['control_steps'], about['control_steps_person']) == (6, 2)
    assert about['policies'] == ['p@1', 'q@2']


def test_both_times_and_the_profiles_survive(tmp_path):
    rig = record(tmp_path)
    rig.kill()
    (before,) = tmp_path.glob('*.recording/*.mcap')
    BagFolder(tmp_path).close()
    with open(bags(tmp_path)[0] / before.name, 'rb') as stream:
        reader = make_reader(stream, validate_crcs=True)
        found = [(m.log_time, m.publish_time, c.metadata) for _, c, m in reader.iter_messages()]
    # what is latched, the inputs of the half second before, and all of the episode
    assert sorted(sent for _, sent, _ in found) == [1, 2, 3, 5, 7, 9, 11, *range(14, 54)]
    assert any('transient_local' in about['offered_qos_profiles'] for *_, about in found)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_bag_cut_anywhere_is_completed(data):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        record(root).kill()
        (file,) = root.glob('*.recording/*.mcap')
        whole = [each.data for each in Bag(file.parent).read()]
        size = data.draw(st.integers(0, file.stat().st_size))
        os.truncate(file, size)
        recovered = BagFolder(root).recovered
        kept = [each.data for bag in bags(root) for each in messages(bag)]
        if recovered[0].is_kept:
            count = recovered[0].messages
            assert kept[:count] == whole[:count]
        # the whole episode is there in any case
        assert bags(root)[-1].name.startswith('arm_1_whole_')
        left = [each.stat().st_size for each in root.glob('*.recording/*.mcap')]
        assert left == ([size] if recovered[0].why else [])


def fail_at(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Make one replacement of a file fail, counted from 1."""
    replace, calls = os.replace, []

    def fail(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, 'No space left on device')
        replace(source, target)

    monkeypatch.setattr(os, 'replace', fail)


def tree(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob('*') if f.is_file()}


@pytest.mark.parametrize(
    ('name', 'why'),
    [
        ('holiday.recording/video.mkv', 'it has no holiday_0.mcap'),
        ('holiday.recording/other.mcap', 'it has no holiday_0.mcap'),
        ('holiday.recording/metadata.yaml', 'it has no holiday_0.mcap'),
        ('a.recording/notes.txt', 'no recorder writes notes.txt'),
        ('a.recording/recovered', 'no recorder writes recovered'),
    ],
)
def test_what_no_recorder_writes_is_left(tmp_path, name, why):
    for each in ('a.recording/a_0.mcap', name):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes(b'of another program')
    if not name.startswith('a.'):
        shutil.rmtree(tmp_path / 'a.recording')
    before = tree(tmp_path)
    folder = BagFolder(tmp_path)
    assert [each.why for each in folder.recovered] == [why]
    assert folder.recovered[0].line.endswith(f'is left as it is: {why}')
    folder.close()
    assert tree(tmp_path).items() >= before.items()


def test_a_linked_folder_is_left(tmp_path):
    record(tmp_path / 'other').kill()
    (cut,) = (tmp_path / 'other').glob('*.recording')
    root = tmp_path / 'bags'
    root.mkdir()
    (root / cut.name).symlink_to(cut)
    before = tree(cut)
    assert [each.is_kept for each in BagFolder(root).recovered] == [True]
    assert tree(cut) == before


@pytest.mark.parametrize('damaged', [slice(0, 8), slice(9, 17), slice(17, None)])
def test_a_bag_that_cannot_be_read_is_left(tmp_path, damaged):
    record(tmp_path).kill()
    (file,) = tmp_path.glob('*.recording/*.mcap')
    raw = bytearray(file.read_bytes())
    raw[damaged] = bytes(len(raw[damaged]))
    file.write_bytes(raw)
    folder = BagFolder(tmp_path)
    assert [each.why for each in folder.recovered] == ['no message of it can be read']
    assert file.read_bytes() == raw
    assert not (file.parent / 'recovered').exists()


def test_a_bag_without_a_message_is_removed(tmp_path):
    writer = BagWriter(tmp_path / 'a', is_temporary=True)
    writer.abort()
    (found,) = BagFolder(tmp_path).recovered
    assert (found.is_kept, found.why) == (False, '')
    assert not list(tmp_path.glob('a*'))


def damaged_bag(root: Path) -> tuple[Path, bytes]:
    """Return the file of a cut bag with a damaged chunk, and its bytes."""
    rig = record(root)
    for _ in range(2):
        rig.run('cut', 10)
        rig.writer.flush()
    rig.kill()
    (file,) = root.glob('*.recording/*.mcap')
    raw = bytearray(file.read_bytes())
    at = raw.rindex(b'joints')
    raw[at] ^= 1
    file.write_bytes(raw)
    return file, bytes(raw)


def test_what_is_damaged_before_the_end_is_counted_and_stays_beside(tmp_path):
    file, raw = damaged_bag(tmp_path)
    (found,) = BagFolder(tmp_path).recovered
    assert found.damaged >= 1
    assert f'; {found.damaged} parts of it are damaged, the old file stays' in found.line
    assert (found.folder / f'{file.name}.damaged').read_bytes() == raw
    assert len(list(messages(found.folder))) == found.messages > 0


@pytest.mark.parametrize('failing', [3, 4, 5])
def test_a_kill_during_the_recovery_loses_no_damaged_file(tmp_path, monkeypatch, failing):
    _, raw = damaged_bag(tmp_path)
    fail_at(monkeypatch, failing)
    with pytest.raises(BagError, match='cannot be completed'):
        BagFolder(tmp_path)
    monkeypatch.undo()
    BagFolder(tmp_path).close()
    (old,) = tmp_path.glob('*_cut_*/*.damaged')
    assert old.read_bytes() == raw
    assert list(messages(old.parent))


@pytest.mark.parametrize('cut_bytes', [0, 1000])
@pytest.mark.parametrize('zeros', [0, 100_000])
def test_a_cut_end_is_no_damage(tmp_path, cut_bytes, zeros):
    rig = record(tmp_path)
    (file,) = tmp_path.glob('*.recording/*.mcap')
    begin = file.stat().st_size
    rig.joints(bytes(5000))
    rig.writer.flush()
    rig.kill()
    if cut_bytes:
        # within the last chunk
        os.truncate(file, begin + cut_bytes)
    elif zeros:
        os.truncate(file, file.stat().st_size + zeros)
    (found,) = BagFolder(tmp_path).recovered
    assert (found.is_kept, found.damaged, found.why) == (True, 0, '')
    assert not list(tmp_path.glob('*/*.damaged'))


def test_a_damaged_length_is_no_cut_end(tmp_path):
    rig = record(tmp_path)
    (file,) = tmp_path.glob('*.recording/*.mcap')
    at = file.stat().st_size
    for _ in range(3):
        rig.run('cut', 5)
        rig.writer.flush()
    rig.kill()
    raw = bytearray(file.read_bytes())
    # the length of the second chunk
    raw[at + 4] ^= 1
    file.write_bytes(raw)
    (found,) = BagFolder(tmp_path).recovered
    assert found.damaged == 1
    assert (found.folder / f'{file.name}.damaged').read_bytes() == raw


# metadata.yaml of the copy, intervals.json, the file, metadata.yaml
@pytest.mark.parametrize('failing', [1, 2, 3, 4])
def test_a_kill_during_the_recovery_changes_nothing(tmp_path, monkeypatch, failing):
    record(tmp_path).kill()
    (file,) = tmp_path.glob('*.recording/*.mcap')
    whole = [each.data for each in Bag(file.parent).read()]
    fail_at(monkeypatch, failing)
    with pytest.raises(BagError, match='cannot be completed'):
        BagFolder(tmp_path)
    monkeypatch.undo()
    BagFolder(tmp_path).close()
    assert [each.data for each in messages(bags(tmp_path)[0])] == whole
    assert not list(tmp_path.glob('*.recording'))


# continuous takes a new folder only
@pytest.mark.parametrize('strategy', [each for each in STRATEGIES if each != 'continuous'])
def test_a_recorder_of_any_strategy_keeps_a_cut_episode_of_another(tmp_path, strategy):
    record(tmp_path).kill()
    lines: list[str] = []
    rules = RecordingRules(only_with_person=True)
    make_writer(RecorderSettings(tmp_path, strategy, rules=rules), lines.append).close()
    (line,) = lines
    assert line.endswith('was cut by the end of its recorder; completed')
    assert len(bags(tmp_path)) == 2


def test_a_second_recorder_is_refused_until_the_first_is_gone(tmp_path):
    code = (
        'import sys; from pathlib import Path; '
        'from lerobot_serve.tools.recorder.bag_folder import BagFolder; '
        'folder = BagFolder(Path(sys.argv[1])); print("held", flush=True); sys.stdin.read()'
    )
    process = subprocess.Popen(
        [sys.executable, '-c', code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b'held\n'
    with pytest.raises(
        BagError, match=rf'in use by lerobot-serve record \(process {process.pid} '
    ):
        BagFolder(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    BagFolder(tmp_path).close()


def test_a_full_disk_keeps_the_whole_episodes(tmp_path, monkeypatch):
    rig = record(tmp_path)
    rig.wait(2.0)
    before = [list(messages(bag)) for bag in bags(tmp_path)]
    queue = WriteQueue(rig.writer)

    def no_room(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(WRITE, no_room)
    queue.put(BagMessage(JOINTS, JOINTS_TYPE, rig.stamp_ns, bytes(100), 1))
    queue.close()
    queue.run()
    assert queue.failed
    assert queue.ended == f'{tmp_path} cannot be written: No space left on device'
    monkeypatch.undo()
    assert [list(messages(bag)) for bag in bags(tmp_path)] == before
    # and the lock is free: the next start completes the other one
    BagFolder(tmp_path)
    assert len(bags(tmp_path)) == 2


def test_a_time_that_no_bag_can_hold_ends_nothing(tmp_path):
    writer = BagWriter(tmp_path / 'a')
    queue = WriteQueue(writer)
    queue.add(TOPIC)
    for received_ns, sent_ns in ((-1, 5), (5, -1), (6, 1 << 64), (1 << 64, 7), (8, 8)):
        queue.put(BagMessage(TOPIC.name, TOPIC.type, received_ns, b'x', sent_ns))
    queue.close()
    queue.run()
    assert not queue.failed
    last = (1 << 63) - 1
    with writer.path.open('rb') as stream:
        found = [(m.log_time, m.publish_time) for _, _, m in make_reader(stream).iter_messages()]
    assert found == [(0, 5), (5, 0), (6, last), (8, 8), (last, 7)]
    about = yaml.safe_load((tmp_path / 'a' / 'metadata.yaml').read_text())
    assert about['rosbag2_bagfile_information']['starting_time'] == {'nanoseconds_since_epoch': 0}


def test_no_room_for_a_new_bag_is_an_error_of_the_disk(tmp_path, monkeypatch):
    rig = record(tmp_path)

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr('lerobot_serve.tools.bags.writer.os.open', no_room)
    with pytest.raises(OSError, match='No space left'):
        rig.run('next')
    monkeypatch.undo()
    rig.kill()


def test_drops_are_counted_by_topic(tmp_path):
    rig = record(tmp_path)
    queue = WriteQueue(rig.writer, waiting_limit_bytes=1000)
    for topic in ('/a', '/a', '/b', '/b'):
        queue.put(BagMessage(topic, TOPIC.type, 1, bytes(400), 1))
    assert (dict(queue.dropped_by_topic), queue.dropped) == ({'/b': 2}, 2)
    rig.kill()


def test_profiles_are_read_as_they_were_written():
    profiles = (OfferedProfile(), OfferedProfile(depth=3, deadline=Duration.of_ns(1_500_000_000)))
    assert profiles_from_yaml(profiles_as_yaml(profiles)) == profiles
    for text in ('', '[', '- 1', '{}', '- {history: 1}'):
        assert profiles_from_yaml(text) in ((OfferedProfile(),), ())
