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

from lerobot_serve.router.storage.checked import checked_float

# stakes as fractions of the largest one, 1 / bound
STAKE_FRACTIONS = (0.02, 0.1, 0.4, 0.9)
FALSE_ALARM_PROBABILITY = 0.01
# number of observations for which FALSE_ALARM_PROBABILITY holds
REPLIES_PER_ALARM, CHUNKS_PER_ALARM = 10**6, 1000
# largest bound: shares above a higher one cannot be detected
HIGHEST_BOUND = 0.95
# half-life of the champion's recent share, in multiples of the minimum count
HALF_LIFE_MINIMUMS = 2.0
EVIDENCE_LIMIT = 1e15


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

    def snapshot(self) -> list[float]:
        """Return the state for `restore`."""
        values = [value for run in self.runs for value in (run.evidence, run.events, run.count)]
        return [*values, self.events, self.count]

    def restore(self, snapshot: Sequence[object]) -> None:
        """Restore the state of a snapshot. Raises ValueError or TypeError."""
        values = [_number(value) for value in snapshot]
        if len(values) != 3 * len(STAKE_FRACTIONS) + 2:
            raise ValueError(f'alarm has {len(values)} values')
        self.runs = [
            EvidenceRun(*values[i : i + 3]) for i in range(0, 3 * len(STAKE_FRACTIONS), 3)
        ]
        self.events, self.count = values[-2:]


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
    """One alarm and one baseline per kind of event; see guards.GUARDED_SHARES."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.of = {kind: ShareAlarm() for kind in kinds}
        self.baselines = {kind: ChampionShare() for kind in kinds}

    def snapshot(self) -> dict[str, list[float]]:
        """Return the state for `restore`."""
        return {
            kind: [*alarm.snapshot(), *astuple(self.baselines[kind])]
            for kind, alarm in self.of.items()
        }

    def restore(self, snapshot: Mapping[str, Sequence[object]]) -> None:
        """Restore the state of a snapshot. Raises ValueError, KeyError or TypeError."""
        for kind, alarm in self.of.items():
            *values, a, b, c, d = snapshot[kind]
            alarm.restore(values)
            self.baselines[kind] = ChampionShare(_number(a), _number(b), _number(c), _number(d))


def _number(value: object) -> float:
    return checked_float(value, 'evidence', EVIDENCE_LIMIT)
