# SPDX-License-Identifier: Apache-2.0
"""
Detect that a share has risen above its bound, with a CUSUM of sequential evidence.

An alarm accumulates log evidence that the share is above the bound, and resets it to 0 when it
falls to 0. So the delay of an alarm does not depend on earlier good observations.

An observation with a share x multiplies the evidence of a stake s by 1 + s (x - bound). While the
expected share, given all earlier observations, is at most the bound, evidence that starts at one
observation ever reaches 1/alpha with probability at most alpha (Ville's inequality). Over N
observations it may start at any of them and with any stake, so that the probability of a false
alarm is at most N * stakes * alpha. alarm_threshold inverts this bound. An observation is one
reply, or a chunk of commands: nothing is assumed of the dependence of commands within a chunk.

Owned by the executor thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
import math
from typing import Annotated

from msgspec import Meta

from lerobot_serve.router.canary.plan import allowed_percent
from lerobot_serve.router.parameters import RouterParameters

# stakes as fractions of the largest one, 1 / bound
STAKE_FRACTIONS = (0.02, 0.1, 0.4, 0.9)
FALSE_ALARM_PROBABILITY = 0.01
# number of observations for which FALSE_ALARM_PROBABILITY holds
REPLIES_PER_ALARM, CHUNKS_PER_ALARM = 10**6, 1000
# largest bound: shares above a higher one cannot be detected
HIGHEST_BOUND = 0.95
# half-life of the champion's recent share, in multiples of the minimum count
HALF_LIFE_MINIMUMS = 2.0
# chunks of commands that each step needs
MIN_COMMAND_CHUNKS = 5
Evidence = Annotated[float, Meta(ge=0, le=1e15)]
# the fields of the runs of an alarm, its own counts, and those of its baseline
STORED_VALUES = 3 * len(STAKE_FRACTIONS) + 2 + 4
StoredAlarm = Annotated[list[Evidence], Meta(min_length=STORED_VALUES, max_length=STORED_VALUES)]


def alarm_threshold(observations: int) -> float:
    """Return the log evidence at which an alarm trips."""
    return math.log(observations * len(STAKE_FRACTIONS) / FALSE_ALARM_PROBABILITY)


@dataclass(slots=True)
class EvidenceRun:
    """Log evidence of one stake, and the counts since its last reset."""

    evidence: float = 0.0
    events: float = 0.0
    count: float = 0.0

    def add(self, events: float, total: float, log_evidence: float) -> None:
        """Add counts and their log evidence; reset them when it is not positive."""
        self.evidence += log_evidence
        self.events, self.count = self.events + events, self.count + total
        if self.evidence <= 0:
            self.evidence = self.events = self.count = 0.0


@dataclass(slots=True)
class ShareAlarm:
    """The alarm of one share. `chunk` counts form one observation."""

    runs: list[EvidenceRun] = field(
        default_factory=lambda: [EvidenceRun() for _ in STAKE_FRACTIONS]
    )
    # counts of the incomplete chunk
    events: float = 0.0
    count: float = 0.0

    def add(self, events: int, total: int, *, bound: float, chunk: int) -> None:
        """Add the counts since the last call."""
        bound = min(bound, HIGHEST_BOUND)
        if chunk == 1:
            self._observe(events, total, bound)
            return
        self.events, self.count = self.events + events, self.count + total
        if self.count >= chunk:
            events_sum, count = self.events, self.count
            share, chunks = events_sum / count, int(count // chunk)
            self.events = self.count = 0.0
            for run, fraction in zip(self.runs, STAKE_FRACTIONS, strict=True):
                log_evidence = chunks * math.log1p(fraction * (share / bound - 1))
                run.add(events_sum, count, log_evidence)

    def _observe(self, events: int, total: int, bound: float) -> None:
        for run, fraction in zip(self.runs, STAKE_FRACTIONS, strict=True):
            of_event = math.log1p(fraction * (1 / bound - 1))
            run.add(events, total, events * of_event + (total - events) * math.log1p(-fraction))

    @property
    def strongest(self) -> EvidenceRun:
        """The run with the largest evidence."""
        return max(self.runs, key=lambda run: run.evidence)


@dataclass(slots=True)
class ChampionShare:
    """The champion's share: the larger of the share of the step and the recent share."""

    events: float = 0.0
    count: float = 0.0
    recent_events: float = 0.0
    recent_count: float = 0.0

    def add(self, events: int, total: int, minimum: int) -> None:
        """Add the counts since the last call."""
        keep = 0.5 ** (total / (HALF_LIFE_MINIMUMS * minimum))
        self.events, self.count = self.events + events, self.count + total
        self.recent_events = self.recent_events * keep + events
        self.recent_count = self.recent_count * keep + total

    def share(self, minimum: int) -> float:
        """Return the share; counts below the minimum are filled up without events."""
        return max(
            self.events / max(self.count, minimum),
            self.recent_events / max(self.recent_count, minimum),
        )


class ShareAlarms:
    """One alarm and one baseline per kind of event; see GUARDED_SHARES."""

    def __init__(self) -> None:
        self.of = {kind.events: ShareAlarm() for kind in GUARDED_SHARES}
        self.baselines = {kind.events: ChampionShare() for kind in GUARDED_SHARES}

    def stored(self) -> dict[str, list[float]]:
        """Return the state for `restore`."""
        return {
            kind: [
                *(value for run in alarm.runs for value in astuple(run)),
                alarm.events,
                alarm.count,
                *astuple(self.baselines[kind]),
            ]
            for kind, alarm in self.of.items()
        }

    def restore(self, stored: Mapping[str, Sequence[float]]) -> None:
        """Restore a stored state. Raises KeyError."""
        for kind, alarm in self.of.items():
            *runs, alarm.events, alarm.count = stored[kind][:-4]
            alarm.runs = [EvidenceRun(*runs[i : i + 3]) for i in range(0, len(runs), 3)]
            self.baselines[kind] = ChampionShare(*stored[kind][-4:])


@dataclass(frozen=True, slots=True)
class GuardedShare:
    """A share with an alarm: the names of its counters and limits."""

    events: str
    total: str
    limit: str
    minimum: str
    # the events in status texts
    events_text: str
    # whether each count is one observation; otherwise a chunk of counts is
    single: bool = False

    def bound(self, alarms: ShareAlarms, limits: RouterParameters) -> float:
        """Return the largest share that is allowed now."""
        baseline = alarms.baselines[self.events].share(getattr(limits, self.minimum))
        limit_percent: float = getattr(limits, self.limit)
        return allowed_percent(limit_percent, 100 * baseline) / 100

    def chunk(self, limits: RouterParameters) -> int:
        """Return the number of counts in one observation."""
        return 1 if self.single else max(1, getattr(limits, self.minimum) // MIN_COMMAND_CHUNKS)

    @property
    def level(self) -> float:
        """The log evidence at which the alarm trips."""
        return alarm_threshold(REPLIES_PER_ALARM if self.single else CHUNKS_PER_ALARM)


GUARDED_SHARES = (
    GuardedShare(
        'failed_replies',
        'replies',
        'canary_max_failed_percent',
        'canary_minimum_replies',
        'requests of the candidate failed',
        single=True,
    ),
    GuardedShare(
        'trips',
        'commands',
        'canary_max_trip_percent',
        'canary_minimum_commands',
        'commands of the candidate were changed by the safety cage',
    ),
    GuardedShare(
        'fallbacks',
        'commands',
        'canary_max_fallback_percent',
        'canary_minimum_commands',
        'commands of the candidate came from the fallback ladder, not from a chunk',
    ),
)
