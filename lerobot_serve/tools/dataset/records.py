# SPDX-License-Identifier: Apache-2.0
"""
The folder meta/lerobot_serve of a dataset: where each episode comes from. One thread.

episodes.jsonl has a line for each episode in order; robots/ has the robot files by their digests;
source.json says how rows were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import json
import math
from pathlib import Path
from typing import Any

from lerobot_serve import __version__
from lerobot_serve.tools.dataset.as_of import RULE as SAMPLED_RULE
from lerobot_serve.tools.dataset.episodes import DatasetError, EpisodePlan, RecordedRobot
from lerobot_serve.tools.dataset.features import Features

FOLDER = 'meta/lerobot_serve'
EXECUTED_RULE = (
    'executed: one row for each ExecutedAction with a command; of each input the message that was '
    'the newest at that control step, by its source timestamp; nothing resampled or filled'
)
DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Existing:
    """A dataset that is there already."""

    features: Features
    fps: int
    robot_type: str
    episodes: int
    rows: int
    lines: tuple[str, ...]
    robots: dict[str, str]

    def refuse_others(self, plans: Iterable[EpisodePlan]) -> frozenset[str]:
        """
        Return the digests of the episodes that are there. Raises DatasetError for an episode that
        is there with other rows.
        """
        there = [json.loads(line) for line in self.lines]
        digests = frozenset(one['digest'] for one in there)
        rows = {(one['robot'], one['episode_id']): one['rows'] for one in there}
        for plan in plans:
            name = plan.client_id, plan.episode_id
            if plan.digest not in digests and name in rows:
                raise DatasetError(
                    f'{plan.title} is in the dataset with other rows: {rows[name]} there, '
                    f'{len(plan.rows)} in these bags; leave its bags out, or convert all bags '
                    'into a new folder'
                )
        return digests

    @classmethod
    def read(cls, root: Path) -> Existing:
        """Raises DatasetError for a folder that is not a dataset of this format."""
        try:
            info = json.loads((root / 'meta/info.json').read_text())
            version, features = str(info['codebase_version']), info['features']
            counts = int(info['total_episodes']), int(info['total_frames'])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(f'{root} is not a LeRobotDataset: {error}') from error
        if not version.startswith('v3.'):
            raise DatasetError(f'{root} has the format {version}; convert it to v3.0 first')
        folder = root / FOLDER
        file = folder / 'episodes.jsonl'
        lines = tuple(file.read_text().splitlines()) if file.is_file() else ()
        robots = {path.stem: path.read_text() for path in folder.glob('robots/*.yaml')}
        name = str(info.get('robot_type') or '')
        return cls(features, info['fps'], name, *counts, lines, robots)


def episode_record(plan: EpisodePlan, digest: str) -> dict[str, Any]:
    """Return what is kept of an episode beside its rows."""
    return {
        'robot': plan.client_id,
        'episode_id': plan.episode_id,
        'bag': plan.bag or None,
        'digest': digest,
        'rows': len(plan.rows),
        'rows_left_out': dict(plan.left_out),
        'cut': plan.cut or None,
        'is_whole': plan.is_whole,
        'outcome': plan.outcome or None,
        'score': None if math.isnan(plan.score) else plan.score,
        'task': plan.task,
        'slots': sorted(plan.slots),
        'fingerprints': sorted(plan.policies),
        'intervention': plan.intervened,
        'first_row_received_ns': plan.rows[0].received_ns,
        'robot_file': f'robots/{plan.robot.digest[:DIGEST_CHARS]}.yaml',
    }


def write(
    root: Path,
    there: Existing | None,
    lines: Sequence[dict[str, Any]],
    robots: Iterable[RecordedRobot],
    *,
    is_sampled: bool,
) -> None:
    """Write the folder of a dataset that joins an existing one and new episodes."""
    folder = root / FOLDER
    (folder / 'robots').mkdir(parents=True)
    files = dict(there.robots) if there else {}
    files |= {robot.digest[:DIGEST_CHARS]: robot.text for robot in robots}
    for name, text in files.items():
        (folder / 'robots' / f'{name}.yaml').write_text(text)
    before = list(there.lines) if there else []
    every = [*before, *(json.dumps(line) for line in lines)]
    (folder / 'episodes.jsonl').write_text(''.join(f'{line}\n' for line in every))
    rule = SAMPLED_RULE if is_sampled else EXECUTED_RULE
    source = {'written_by': f'lerobot_serve {__version__}', 'rows': rule}
    (folder / 'source.json').write_text(json.dumps(source, indent=2) + '\n')


def left_out_text(plan: EpisodePlan) -> str:
    return ', '.join(f'{count} ({why})' for why, count in plan.left_out.items())
