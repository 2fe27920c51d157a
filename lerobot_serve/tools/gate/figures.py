# SPDX-License-Identifier: Apache-2.0
"""
All figures of a gate: motions of both policies, tasks, and how each recorded episode ended.

Only an episode that one policy drove alone, and whose outcome is known, counts. An aborted one is
a failure, as in the canary. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot_serve.contract.data_path.chunk import read_reply_summary, ReplySummary
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OUTCOME
from lerobot_serve.tools.gate.motion import PolicyMotion, SharedMotion

# a router receives replies under this name; those of a shadow reach no robot
RELAYED, CALLERS = '/replies/', '/replies/callers'
Outcome = EpisodeOutcome.Outcome
IS_SUCCESS = {Outcome.SUCCESS: True, Outcome.FAILURE: False, Outcome.ABORTED: False}


@dataclass(slots=True)
class TaskFigures(SharedMotion):
    """One task: the motions of both policies, and outcomes as successes and failures."""

    parent: tuple[int, int] = (0, 0)
    candidate: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class GateFigures:
    """What a gate judges. `digest` is the SHA-256 of all requests, in order."""

    candidate_policy: str
    parent_policy: str
    candidate: PolicyMotion = field(default_factory=PolicyMotion)
    parent: PolicyMotion = field(default_factory=PolicyMotion)
    # whether the parent was run beside the candidate; otherwise its recorded replies stand for it
    is_parent_run: bool = True
    candidate_bytes: int = 0
    parent_bytes: int = 0
    tasks: dict[str, TaskFigures] = field(default_factory=dict)
    episodes: int = 0
    requests: int = 0
    digest: str = ''
    notes: list[str] = field(default_factory=list)

    def task(self, name: str) -> TaskFigures:
        """Return the figures of a task; they begin empty."""
        return self.tasks.setdefault(name, TaskFigures())

    @property
    def overall(self) -> TaskFigures:
        """All tasks together."""
        found = TaskFigures()
        for each in self.tasks.values():
            found.add(each)
            found.parent = added(found.parent, each.parent)
            found.candidate = added(found.candidate, each.candidate)
        return found


def added(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """Return the sum of two pairs of counts."""
    return first[0] + second[0], first[1] + second[1]


@dataclass(slots=True)
class RecordedEpisodes:
    """Which policy drove each recorded episode, and how it ended; by episode id."""

    policies: dict[str, set[str]] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, bool] = field(default_factory=dict)
    unreadable: int = 0

    def add(self, message: BagMessage) -> None:
        """Add a message of a bag; others than replies and outcomes change nothing."""
        try:
            if message.type == OUTCOME:
                self._add_outcome(message.record())
            elif message.type == CHUNK and reaches_robot(message.topic):
                self._add_reply(read_reply_summary(message.data))
        except Malformed:
            self.unreadable += 1

    def _add_outcome(self, outcome: EpisodeOutcome) -> None:
        # the first one of an episode counts
        if outcome.outcome in IS_SUCCESS:
            self.outcomes.setdefault(outcome.episode_id, IS_SUCCESS[outcome.outcome])

    def _add_reply(self, reply: ReplySummary) -> None:
        if reply.status == Status.OK and reply.start.episode_id:
            policies = self.policies.setdefault(reply.start.episode_id, set())
            policies.add(digest_of(reply.policy))

    def add_task(self, episode_id: str, task: str) -> None:
        """Add the task of an episode; the first one counts."""
        self.tasks.setdefault(episode_id, task)

    def count_into(self, figures: GateFigures) -> None:
        """Add successes and failures of both policies to the figures of their tasks."""
        for episode_id, is_success in self.outcomes.items():
            policies = self.policies.get(episode_id, set())
            if len(policies) != 1:
                continue
            (policy,) = policies
            task = figures.task(self.tasks.get(episode_id, ''))
            more = (int(is_success), int(not is_success))
            if policy == digest_of(figures.candidate_policy):
                task.candidate = added(task.candidate, more)
            elif policy == digest_of(figures.parent_policy):
                task.parent = added(task.parent, more)


def reaches_robot(topic: str) -> bool:
    """Return whether the replies on a topic are those for a robot or a caller."""
    return RELAYED not in topic or topic.endswith(CALLERS)
