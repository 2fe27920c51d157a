# SPDX-License-Identifier: Apache-2.0
"""Whole bags of episodes as a recorder writes them, without ROS."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from lerobot_serve.experience.bag_files import METADATA_FILE
from support.tools.recorder_rig import RecorderRig


def whole_episodes(root: Path, *names: str) -> list[Path]:
    """Record episodes; return their bags, each completed a second after the one before."""
    recording = RecorderRig(root)
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
