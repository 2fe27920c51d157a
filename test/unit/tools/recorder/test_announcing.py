# SPDX-License-Identifier: Apache-2.0
"""What a recorder announces: each whole bag, at each start, and nothing that is not whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
import shutil
import tempfile
import threading

from hypothesis import settings
from hypothesis.stateful import initialize, invariant, rule, RuleBasedStateMachine
from hypothesis.strategies import booleans, integers, sampled_from
import pytest
from support.tools.episode_bags import file_of, sha256sum, whole_episodes
from support.tools.recorder_rig import bags, RecorderRig
from support.waiting import wait_until

from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.experience import scanning
from lerobot_serve.experience.bag_files import RECORDING
from lerobot_serve.experience.recorded_episode import decode_recorded
from lerobot_serve.experience.scanning import episodes_in, HASH_FILE, noted_hash
from lerobot_serve.tools.recorder import announcer as announcer_module
from lerobot_serve.tools.recorder.announcer import EpisodeAnnouncer, WholeBags
from lerobot_serve.tools.recorder.options import RecordingRules


class Listener:
    """An announcer whose messages are gathered; `announce` runs it to its end."""

    def __init__(self, found: WholeBags) -> None:
        self.lines: list[str] = []
        self.raw: list[bytes] = []
        self.found = found
        self.announcer = EpisodeAnnouncer(found, self.raw.append, self.lines.append)

    @property
    def episodes(self) -> list[RecordedEpisode]:
        return [decode_recorded(each) for each in self.raw]

    @property
    def ids(self) -> list[str]:
        return [each.episode_id for each in self.episodes]

    def announce(self) -> None:
        # what waits is announced before the end
        thread = threading.Thread(target=self.announcer.run)
        thread.start()
        counts = self.announcer
        wait_until(lambda: counts.announced + counts.skipped >= self.wanted, 'all is announced')
        self.found.close()
        thread.join(30)
        assert not thread.is_alive()

    @property
    def wanted(self) -> int:
        earlier, others = self.found.earlier
        newest = min(len(earlier), announcer_module.ANNOUNCED_LIMIT)
        return newest + len(others) + len(self.found._waiting)


def restarted(root: Path) -> Listener:
    """Announce as a recorder does that starts and has nothing to record."""
    recording = RecorderRig(root)
    listener = Listener(recording.writer.whole_bags)
    listener.announce()
    recording.stop()
    return listener


def test_a_whole_bag_is_announced_with_its_late_outcome(tmp_path):
    recording = RecorderRig(tmp_path)
    listener = Listener(recording.writer.whole_bags)
    recording.run('ep', 4)
    recording.report('')
    recording.wait(1.0)
    assert not listener.found._waiting
    recording.judge('ep', 'failure')
    recording.wait(1.0)
    assert len(listener.found._waiting) == 1
    listener.announce()
    (episode,) = listener.episodes
    (bag,) = bags(tmp_path)
    assert (episode.outcome.word, episode.path) == ('failure', str(bag))
    assert episode.sha256 == sha256sum(bag)
    assert noted_hash(file_of(bag)).sha256 == sha256sum(bag)
    recording.stop()


def test_a_start_announces_what_is_there_as_it_was_and_reads_no_bag_again(tmp_path, monkeypatch):
    recording = RecorderRig(tmp_path)
    first = Listener(recording.writer.whole_bags)
    for name in ('a', 'b', 'c'):
        recording.record(name)
    first.announce()
    recording.stop()
    assert first.ids == ['a', 'b', 'c']

    def forbidden(*_: object) -> None:
        raise AssertionError('a bag is read')

    monkeypatch.setattr(scanning, 'hash_of', forbidden)
    second = restarted(tmp_path)
    assert second.raw == first.raw
    assert second.lines == ['3 earlier episodes are announced; 0 folders are skipped']
    assert list(episodes_in(tmp_path)) == first.episodes


def test_the_writing_thread_reads_no_bag(tmp_path, monkeypatch):
    def forbidden(*_: object) -> None:
        raise AssertionError('a bag is read')

    recording = RecorderRig(tmp_path)
    monkeypatch.setattr(scanning, 'hash_of', forbidden)
    recording.record('ep')
    recording.stop()
    assert recording.writer.whole_bags.next().name.startswith('arm_1_ep_')


def test_a_note_that_is_stale_is_written_again(tmp_path):
    (bag,) = whole_episodes(tmp_path, 'ep')
    restarted(tmp_path)
    note = json.loads((bag / HASH_FILE).read_text())
    (bag / HASH_FILE).write_text(json.dumps({**note, 'size_bytes': 1, 'sha256': '0' * 64}))
    assert restarted(tmp_path).episodes[0].sha256 == sha256sum(bag)
    assert json.loads((bag / HASH_FILE).read_text()) == note


def test_a_cut_episode_is_announced_once_the_next_recorder_completed_it(tmp_path):
    recording = RecorderRig(tmp_path)
    recording.record('whole')
    recording.begin('cut', 3)
    recording.kill()
    # killed before a hash was kept
    listener = restarted(tmp_path)
    assert sorted(listener.ids) == ['cut', 'whole']
    (cut,) = [each for each in listener.episodes if each.episode_id == 'cut']
    assert (cut.control_steps, cut.outcome, cut.policies) == (3, 0, ('p@1',))
    assert restarted(tmp_path).raw == listener.raw


def test_what_is_no_episode_is_logged_once_each_and_counted(tmp_path, monkeypatch):
    whole_episodes(tmp_path, 'a', 'b')
    monkeypatch.setattr(announcer_module, 'NAMED_LIMIT', 2)
    for number in range(3):
        (tmp_path / f'other {number}\n').mkdir()
    listener = restarted(tmp_path)
    assert listener.ids == ['a', 'b']
    assert listener.announcer.skipped == 3
    assert listener.lines == [
        r"'other 0\n' is not announced: it has no file metadata.yaml",
        r"'other 1\n' is not announced: it has no file metadata.yaml",
        '2 earlier episodes are announced; 3 folders are skipped',
    ]


def test_a_start_announces_the_newest(tmp_path, monkeypatch):
    whole_episodes(tmp_path, *'abcde')
    monkeypatch.setattr(announcer_module, 'ANNOUNCED_LIMIT', 3)
    listener = restarted(tmp_path)
    assert listener.ids == ['c', 'd', 'e']
    assert listener.announcer.older == 2
    assert '3 earlier episodes are announced, 2 older ones are not' in listener.lines[-1]


def test_an_episode_that_dagger_removes_is_not_announced(tmp_path):
    recording = RecorderRig(tmp_path, RecordingRules(only_with_person=True))
    listener = Listener(recording.writer.whole_bags)
    recording.run('alone')
    recording.report('')
    recording.wait(3.0)
    recording.record('helped', source='person', policy='')
    listener.announce()
    ((helped,), (bag,)) = listener.episodes, bags(tmp_path)
    assert (helped.episode_id, helped.path) == ('helped', str(bag))
    assert helped.control_steps_person == helped.control_steps == 5
    recording.stop()


def test_a_bag_that_does_not_fit_is_counted_and_found_at_the_next_start(tmp_path):
    recording = RecorderRig(tmp_path)
    recording.writer.whole_bags = WholeBags(tmp_path, limit=2)
    listener = Listener(recording.writer.whole_bags)
    for name in ('a', 'b', 'c'):
        recording.record(name)
    listener.announce()
    recording.stop()
    assert (listener.ids, listener.announcer.left) == (['a', 'b'], 1)
    assert restarted(tmp_path).ids == ['a', 'b', 'c']


def test_a_recorder_that_ends_does_not_wait_for_a_long_hash(tmp_path, monkeypatch):
    whole_episodes(tmp_path, 'long')
    recording = RecorderRig(tmp_path)
    now = [0.0]
    found = WholeBags(tmp_path, clock=lambda: now[0])
    listener = Listener(found)
    read = scanning.hash_of

    def slow(path: Path, count: object) -> object:
        found.close()
        now[0] = 6.0
        return read(path, count)

    monkeypatch.setattr(scanning, 'hash_of', slow)
    listener.announcer.run()
    monkeypatch.undo()
    assert (listener.ids, listener.announcer.left) == ([], 1)
    recording.stop()
    assert restarted(tmp_path).ids == ['long']


def test_a_hash_rests_after_each_block_for_thrice_its_cpu_time(tmp_path, monkeypatch):
    (bag,) = whole_episodes(tmp_path, 'ep')
    monkeypatch.setattr('lerobot_serve.versions.file_hash.BLOCK_BYTES', 256)
    cpu_s = [0.0]
    rests: list[float] = []

    def thread_time() -> float:
        cpu_s[0] += 0.5
        return cpu_s[0]

    monkeypatch.setattr(announcer_module.time, 'thread_time', thread_time)
    found = WholeBags(tmp_path)
    monkeypatch.setattr(found, 'rest', rests.append)
    listener = Listener(found)
    listener.announce()
    assert listener.ids == ['ep']
    assert rests == [1.5] * -(-file_of(bag).stat().st_size // 256)


def test_a_rest_ends_with_the_recorder(tmp_path):
    found = WholeBags(tmp_path)
    thread = threading.Thread(target=found.rest, args=(3600.0,))
    thread.start()
    found.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_recorder_that_ends_announces_what_waits_but_not_what_was_there(tmp_path):
    whole_episodes(tmp_path, 'earlier')
    recording = RecorderRig(tmp_path)
    listener = Listener(recording.writer.whole_bags)
    recording.record('new')
    recording.stop()
    listener.found.close()
    listener.announcer.run()
    assert listener.ids == ['new']


def test_on_a_full_disk_an_episode_is_announced_without_a_note(tmp_path, monkeypatch):
    whole_episodes(tmp_path, 'a', 'b')

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(announcer_module, 'write_note', no_room)
    listener = restarted(tmp_path)
    assert listener.ids == ['a', 'b']
    (line,) = (each for each in listener.lines if 'No space left' in each)
    assert 'is not kept' in line
    assert not list(tmp_path.rglob(HASH_FILE))
    monkeypatch.undo()
    assert restarted(tmp_path).raw == listener.raw


def test_a_kill_while_a_note_is_written_leaves_an_episode(tmp_path, monkeypatch):
    (bag,) = whole_episodes(tmp_path, 'a')
    (bag / f'{HASH_FILE}.part').write_text('{"fi')
    assert restarted(tmp_path).ids == ['a']
    assert not (bag / f'{HASH_FILE}.part').exists()


def test_a_bag_that_is_removed_before_it_is_read_is_skipped(tmp_path):
    recording = RecorderRig(tmp_path)
    listener = Listener(recording.writer.whole_bags)
    os.rename(recording.record('gone'), tmp_path.parent / 'elsewhere')
    recording.record('stays')
    listener.announce()
    recording.stop()
    assert listener.ids == ['stays']
    assert 'is not announced: it has no file metadata.yaml' in listener.lines[0]


@pytest.mark.parametrize('waiting', [0, 3])
def test_close_wakes_the_announcing_thread(tmp_path, waiting):
    found = WholeBags(tmp_path)
    for number in range(waiting):
        found.put(tmp_path / str(number))
    listener = Listener(found)
    thread = threading.Thread(target=listener.announcer.run)
    thread.start()
    found.close()
    thread.join(30)
    assert not thread.is_alive()
    assert listener.announcer.skipped == waiting


class Life(RuleBasedStateMachine):
    """`announced` has the last announcement of each bag."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.announced: dict[str, bytes] = {}
        self.number = 0
        self.begin()

    def begin(self) -> None:
        self.recording = RecorderRig(self.root)
        self.raw: list[bytes] = []
        self.lines: list[str] = []
        self.bags = self.recording.writer.whole_bags
        self.announcer = EpisodeAnnouncer(self.bags, self.raw.append, self.lines.append)
        self.announcer._announce_earlier()
        self.check(len(self.bags.earlier.episodes))

    def check(self, count: int) -> None:
        """Take what was announced: so many messages, each as before."""
        taken, self.raw[:] = list(self.raw), []
        assert len(taken) == count
        for raw in taken:
            episode = decode_recorded(raw)
            assert self.announced.setdefault(episode.path, raw) == raw
            assert episode.sha256 == sha256sum(Path(episode.path))
            assert not episode.path.endswith(RECORDING)

    @rule(outcome=sampled_from(['', 'success', 'aborted']), is_heard=booleans())
    def record(self, outcome: str, is_heard: bool) -> None:
        self.number += 1
        self.recording.record(f'ep-{self.number}', outcome)
        if is_heard:
            self.announcer._announce(self.bags.next())
            self.check(1)

    @rule(steps=integers(1, 5), is_killed=booleans())
    def restart(self, steps: int, is_killed: bool) -> None:
        self.number += 1
        self.recording.begin(f'ep-{self.number}', steps)
        if is_killed:
            self.recording.kill()
        else:
            self.recording.stop()
        self.begin()
        assert set(self.announced) == {each.path for each in episodes_in(self.root)}

    @rule(content=sampled_from([b'', b'{}', b'[[', b'\xff']), index=integers(0, 99))
    def damage_note(self, content: bytes, index: int) -> None:
        paths = sorted(self.announced)
        if paths:
            (Path(paths[index % len(paths)]) / HASH_FILE).write_bytes(content)

    @rule(index=integers(0, 99))
    def remove(self, index: int) -> None:
        paths = sorted(self.announced)
        if paths:
            shutil.rmtree(paths[index % len(paths)])
            del self.announced[paths[index % len(paths)]]

    @invariant()
    def a_scan_finds_what_was_announced(self) -> None:
        if hasattr(self, 'announced'):
            found = {each.path: each for each in episodes_in(self.root)}
            for path, raw in self.announced.items():
                assert found[path] == decode_recorded(raw)
                assert file_of(Path(path)).stat().st_size == found[path].size_bytes

    def teardown(self) -> None:
        if hasattr(self, 'recording'):
            self.recording.stop()
            shutil.rmtree(self.root)


Life.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestLife = Life.TestCase
