# SPDX-License-Identifier: Apache-2.0
"""
Who commanded the robot when, in one episode, and with which policies: the file intervals.json of
its bag. Any thread.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
import json
from pathlib import Path

from lerobot_serve.atomic_file import replacement_of, sync_folder
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.experience.bag_files import INTERVALS_FILE
from lerobot_serve.experience.episode_facts import PERSON
from lerobot_serve.experience.recorded_episode import POLICIES_LIMIT


@dataclass(slots=True)
class Interval:
    """Consecutive control steps of one source; times are by the clock of the edge."""

    source: str
    first_step: int
    last_step: int
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class EpisodeSummary:
    """
    What intervals.json says of an episode. `policies` are the first POLICIES_LIMIT that its
    actions name.
    """

    robot: str
    node: str
    episode_id: str
    outcome: str = ''
    ended: str = ''
    control_steps: int = 0
    control_steps_person: int = 0
    policies: list[str] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)

    @property
    def has_person(self) -> bool:
        """Return whether a person commanded the robot."""
        return any(each.source == PERSON for each in self.intervals)

    def add(self, action: ExecutedAction) -> None:
        """Count one executed action of this episode."""
        self.control_steps += 1
        source = action.source.word
        self.control_steps_person += source == PERSON
        self._add_policy(action.policy)
        last = self.intervals[-1] if self.intervals else None
        step, stamp_ns = action.control_step, action.stamp.ns
        if last and last.source == source:
            last.last_step, last.end_ns = step, stamp_ns
        else:
            self.intervals.append(Interval(source, step, step, stamp_ns, stamp_ns))

    def _add_policy(self, policy: str) -> None:
        is_new = policy and policy not in self.policies
        if is_new and len(self.policies) < POLICIES_LIMIT:
            self.policies.append(policy)

    def as_json(self) -> str:
        """Return the content of the file."""
        return json.dumps({**asdict(self), 'intervention': self.has_person}, indent=1) + '\n'


def write_summary(folder: Path, summary: EpisodeSummary) -> None:
    """Write intervals.json into the folder of a bag. Raises OSError."""
    with replacement_of(folder / INTERVALS_FILE, durable=True) as part:
        part.write_text(summary.as_json())
        sync_folder(part)


def read_summary(folder: Path) -> EpisodeSummary | None:
    """Return what intervals.json of a running episode says of it; None without a whole one."""
    try:
        content = json.loads((folder / INTERVALS_FILE).read_text())
        robot, node, episode_id = (str(content[key]) for key in ('robot', 'node', 'episode_id'))
        return EpisodeSummary(robot, node, episode_id)
    except (OSError, ValueError, KeyError, TypeError):
        return None
