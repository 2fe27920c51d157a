# SPDX-License-Identifier: Apache-2.0
"""Whole bags of episodes as a recorder writes them, without ROS."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from lerobot_serve.experience.bag_files import METADATA_FILE
from lerobot_serve.tools.recorder.robots.known_robots import KnownRobots
from lerobot_serve.tools.recorder.storage.bag_folder import BagFolder
from lerobot_serve.tools.recorder.strategies.episodic import EpisodeRules, EpisodicWriter
from support.tools.recorder_rig import bags, RecorderRig


class Recording(RecorderRig):
    """An episodic recorder of one robot; each instance is a start of it."""

    def __init__(self, root: Path, rules: EpisodeRules | None = None) -> None:
        super().__init__()
        self.root = root
        self.writer = EpisodicWriter(
            rules or EpisodeRules(), BagFolder(root), KnownRobots(), **self.options
        )
        self.introduce()

    def record(self, episode_id: str, outcome: str = 'success', **fields: object) -> Path:
        """Record a whole episode; return its bag."""
        before = set(bags(self.root))
        self.run(episode_id, **fields)
        if outcome:
            self.judge(episode_id, outcome)
        self.report('')
        self.wait(3.0)
        (bag,) = set(bags(self.root)) - before
        return bag

    def begin(self, episode_id: str, steps: int = 5) -> None:
        """Begin an episode; what it has is on the disk."""
        self.run(episode_id, steps)
        self.writer.flush()

    def stop(self) -> None:
        self.writer.close()

    def kill(self) -> None:
        """End as SIGKILL does: nothing is completed."""
        self.writer.abort()


def whole_episodes(root: Path, *names: str) -> list[Path]:
    """Record episodes; return their bags, each completed a second after the one before."""
    recording = Recording(root)
    made = [recording.record(name) for name in names]
    recording.stop()
    for number, bag in enumerate(made):
        complete_at(bag, 1_000_000_000 + number)
    return made


def complete_at(bag: Path, second: int) -> None:
    """Let a bag have been completed at a time."""
    os.utime(bag / METADATA_FILE, (second, second))


def file_of(bag: Path) -> Path:
    (file,) = bag.glob('*.mcap')
    return file


def sha256sum(bag: Path) -> str:
    return hashlib.sha256(file_of(bag).read_bytes()).hexdigest()
