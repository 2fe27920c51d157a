# SPDX-License-Identifier: Apache-2.0
"""
Random lives of a recorder and its folder: each start announces exactly the whole bags, as before.
"""

from __future__ import annotations

from pathlib import Path
import shutil
import tempfile

from hypothesis import settings
from hypothesis.stateful import initialize, invariant, rule, RuleBasedStateMachine
from hypothesis.strategies import booleans, integers, sampled_from
from support.tools.episode_bags import file_of, sha256sum
from support.tools.recorder_rig import RecorderRig

from lerobot_serve.experience.bag_files import RECORDING
from lerobot_serve.experience.hash_note import HASH_FILE
from lerobot_serve.experience.recorded_episode import decode_recorded
from lerobot_serve.experience.scanning import episodes_in
from lerobot_serve.tools.recorder.announcer import EpisodeAnnouncer


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
