# SPDX-License-Identifier: Apache-2.0
"""
The limits of a gate and its figures: motions of both policies, tasks, and how each recorded
episode ended. One thread.

Only an episode that one policy drove alone, and whose outcome is known, counts. An aborted one is
a failure, as in the canary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
import math
from typing import Annotated

from lerobot_serve.contract.data_path.chunk import read_reply_summary, ReplySummary
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.contract.schema import Status
from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.argument import Argument
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


# limits of safety gates may not be relaxed: these gates cannot be overridden
STRICTEST: dict[str, tuple[str, float]] = {
    'minimum_episodes': ('at least', 30),
    'cage_percent': ('at most', 2.0),
    'cage_ratio': ('at most', 1.1),
    'velocity_distance': ('at most', 0.5),
    'margin': ('at most', 0.1),
}


@dataclass(frozen=True, slots=True)
class GateLimits:
    """
    Each is an option of `lerobot-serve gate`.

    The shares are of chunks, the evidence is that of the canary.
    """

    minimum_episodes: Annotated[int, Argument('distinct episodes that are needed', 'N')] = 30
    cage_percent: Annotated[
        float, Argument('share of chunks that the cage would change [%], at most', 'X')
    ] = 2.0
    cage_ratio: Annotated[float, Argument('or this many times the share of the parent', 'X')] = 1.1
    velocity_distance: Annotated[
        float,
        Argument("distance of the velocities, in spreads of the parent's, at most", 'X'),
    ] = 0.5
    # of all episodes and of any task
    margin: Annotated[float, Argument('deficit of the success rate that is acceptable', 'X')] = 0.1
    latency_ratio: Annotated[
        float, Argument('p99 of the inference time, over that of the parent, at most', 'X')
    ] = 1.5
    memory_ratio: Annotated[
        float, Argument('bytes of the files, over those of the parent, at most', 'X')
    ] = 1.5
    # in all and in any task
    similarity: Annotated[
        float, Argument('cosine of the motions of both policies, at least', 'X')
    ] = 0.85

    def __post_init__(self) -> None:
        for name, (rule, bound) in STRICTEST.items():
            value = getattr(self, name)
            if value < bound if rule == 'at least' else value > bound:
                option = name.replace('_', '-')
                raise ParameterError(
                    f'--{option} belongs to a safety gate and may only be stricter than '
                    f'{bound:g}, got {value:g}'
                )
        for entry in fields(self):
            value = getattr(self, entry.name)
            high = {'margin': 0.5, 'similarity': 1.0, 'cage_percent': 100.0}.get(entry.name)
            if not (math.isfinite(value) and 0 <= value <= (high or math.inf)):
                allowed = f'in [0, {high:g}]' if high else 'finite and at least 0'
                option = entry.name.replace('_', '-')
                raise ParameterError(f'--{option} must be {allowed}, got {value!r}')
