# SPDX-License-Identifier: Apache-2.0
"""Bags of single episodes, as a recorder leaves them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.recording.example_bag import EdgeBag
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.experience.scanning import read_episode


def record_episode(
    bags: Path, name: str, control_steps: int, *, control_steps_person: int = 0
) -> RecordedEpisode:
    """Write the bag of an episode that succeeded, below a folder; return what a recorder says."""
    bag = EdgeBag(bags / f'bag_{name}')
    bag.episode(name, control_steps)
    folder = bag.close()
    about = {
        'robot': 'arm',
        'episode_id': name,
        'outcome': 'success',
        'control_steps': control_steps,
        'control_steps_person': control_steps_person,
        'policies': ['sha256:aaaa'],
    }
    (folder / 'intervals.json').write_text(json.dumps(about))
    return read_episode(folder)
