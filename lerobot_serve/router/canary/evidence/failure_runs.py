# SPDX-License-Identifier: Apache-2.0
"""
Measure how far the failures of an arm come in runs of one robot. Owned by the executor thread.

A camera that slips makes all episodes of its robot fail until it is put right: ten failures for
one reason, which say as much as one. The measure is the number of failures in the run of a failure
at the mean, sum(n^2) / sum(n) over the runs of n consecutive failures of a robot, divided by what
it is where failures do not depend on each other, (1 + q) / (1 - q) at a share q of failures. That
is the factor by which runs multiply the variance of a success rate over many episodes; it is exact
for runs of any lengths among few failures, and 1 without runs. Where few failures are known,
one of an assumed run counts beside them: no failure is not a sign that they come singly.

Each robot's episodes count in the order in which they begin. An end without an outcome, an open
episode that many later ones have overtaken, and a robot that is not known show nothing about runs:
the first two are left out, a failure of an unknown robot is one of an assumed run.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

PRIOR_FAILURES = 1
# known ends behind an open episode, from which on it is left out
OVERTAKEN_LIMIT = 20
# robots whose present run is remembered
ROBOTS_LIMIT = 10_000
FAILURES = ('failure', 'aborted')
KNOWN = ('success', *FAILURES)
# of an episode that waits; the others have no outcome
ENDS = ('', *KNOWN, 'moved', 'unreported')
Count = Annotated[int, Meta(ge=0)]
End = Annotated[str, Meta(pattern=rf'^({"|".join(ENDS)})\Z', description='an end or empty')]


class StoredRuns(Struct, frozen=True):
    """The state of FailureRuns: its four counts; robots with their run and waiting episodes."""

    counts: tuple[Count, Count, Count, Count]
    robots: list[tuple[str, Count, list[tuple[str, End]]]]


@dataclass(slots=True)
class RobotEpisodes:
    """The present run of failures of a robot, and its episodes that wait for an earlier one."""

    run: int = 0
    # episode -> its end, empty while it is open; the first one is open
    waiting: OrderedDict[str, str] = field(default_factory=OrderedDict)
    # ends among them
    known: int = 0


class FailureRuns:
    """The episodes of one arm by robot; see the module."""

    def __init__(self) -> None:
        self.episodes = self.failures = self.unknown = 0
        # sum of the squares of the lengths of all runs
        self.squares = 0
        self._robots: OrderedDict[str, RobotEpisodes] = OrderedDict()
        # open episode -> robot
        self._robot_of: dict[str, str] = {}

    def begin(self, episode_id: str, robot: str) -> None:
        """Add an episode that begins; `robot` is empty if it is not known."""
        if not robot:
            return
        self._robot_of[episode_id] = robot
        self._robots.setdefault(robot, RobotEpisodes()).waiting[episode_id] = ''
        self._robots.move_to_end(robot)
        if len(self._robots) > ROBOTS_LIMIT:
            self._robots.popitem(last=False)

    def end(self, episode_id: str, what: str) -> None:
        """Add the end of an episode."""
        name = self._robot_of.pop(episode_id, '')
        robot = self._robots.get(name)
        if not name:
            self.episodes += what in KNOWN
            self.unknown += what in FAILURES
        elif robot and episode_id in robot.waiting:
            robot.waiting[episode_id] = what
            robot.known += 1
            self._count_waiting(robot)

    def _count_waiting(self, robot: RobotEpisodes) -> None:
        while robot.waiting:
            first, what = next(iter(robot.waiting.items()))
            if not what and robot.known < OVERTAKEN_LIMIT:
                return
            del robot.waiting[first]
            robot.known -= bool(what)
            self._count(robot, what)

    def _count(self, robot: RobotEpisodes, what: str) -> None:
        if what not in KNOWN:
            return
        self.episodes += 1
        if what == 'success':
            robot.run = 0
            return
        self.failures += 1
        # (n + 1)^2 - n^2
        self.squares += 2 * robot.run + 1
        robot.run += 1

    def factor(self, assumed_run: int) -> float:
        """Return by how much runs multiply the variance, at least 1."""
        failures, assumed = self.failures + self.unknown, self.unknown + PRIOR_FAILURES
        mean_run = (self.squares + assumed * assumed_run) / (failures + PRIOR_FAILURES)
        share = (failures + 1) / (self.episodes + 2)
        return max(1.0, mean_run * (1 - share) / (1 + share))

    def stored(self) -> StoredRuns:
        """Return the state for `restore`."""
        robots = [
            (name, robot.run, list(robot.waiting.items()))
            for name, robot in self._robots.items()
            if robot.run or robot.waiting
        ]
        return StoredRuns((self.episodes, self.failures, self.unknown, self.squares), robots)

    def restore(self, stored: StoredRuns) -> None:
        """Restore a stored state. Raises ValueError."""
        self.episodes, self.failures, self.unknown, self.squares = stored.counts
        if self.failures + self.unknown > self.episodes:
            raise ValueError(f'more failures than episodes: {stored.counts!r}')
        for name, run, waiting in stored.robots:
            known = sum(bool(what) for _, what in waiting)
            self._robots[name] = RobotEpisodes(run, OrderedDict(waiting), known)
            self._robot_of.update((episode_id, name) for episode_id, what in waiting if not what)


def common_factor(candidate: FailureRuns, champion: FailureRuns, assumed_run: int) -> float:
    """
    Return the factor of the difference of both rates; the arm with fewer episodes weighs more.
    Runs are assumed of the candidate, which looks too good as long as none was seen.
    """
    mine, its = candidate.episodes + 1, champion.episodes + 1
    factors = candidate.factor(assumed_run) * its + champion.factor(1) * mine
    return factors / (mine + its)
