# SPDX-License-Identifier: Apache-2.0
"""
Find that a share has risen above its bound, however long it was below. Pure but for its own state.

An alarm adds up evidence that the share is now above the bound, and forgets it whenever it falls
below nothing (CUSUM). So how soon it sounds does not depend on how much good came before.

An observation with a share x multiplies the evidence of a stake s by 1 + s (x - bound). While the
expected share, given all before, is at most the bound, evidence that began at one observation ever
reaches 1/alpha with probability alpha at most (Ville). Over N observations it may begin at any of
them and with any stake, so a false alarm among them has probability N * stakes * alpha at most.
That is the level below. An observation is one answer, or a chunk of commands: commands of one
robot follow each other closely, and nothing is assumed of those within a chunk.

Owned by the executor thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
import math
from typing import Any

# of the highest stake, which is 1 / bound
STAKE_FRACTIONS = (0.02, 0.1, 0.4, 0.9)
FALSE_ALARM_PROBABILITY = 0.01
# observations among which a false alarm has that probability at most
REPLIES_PER_ALARM, CHUNKS_PER_ALARM = 10**6, 1000
# above it nothing can be told from it
HIGHEST_BOUND = 0.95
# how fast the champion's recent share forgets, in minimums
HALF_LIFE_MINIMUMS = 2.0


def alarm_threshold(observations: int) -> float:
    """Return the log evidence at which an alarm sounds."""
    return math.log(observations * len(STAKE_FRACTIONS) / FALSE_ALARM_PROBABILITY)


@dataclass(slots=True)
class EvidenceRun:
    """Evidence of one stake, and what was seen since it began."""

    evidence: float = 0.0
    events: float = 0.0
    count: float = 0.0

    def add(self, events: float, total: float, more: float) -> None:
        self.evidence += more
        self.events, self.count = self.events + events, self.count + total
        if self.evidence <= 0:
            self.evidence = self.events = self.count = 0.0


@dataclass(slots=True)
class ShareAlarm:
    """One share. `chunk` counts make an observation; 1: each is one, an event or none."""

    runs: list[EvidenceRun] = field(
        default_factory=lambda: [EvidenceRun() for _ in STAKE_FRACTIONS]
    )
    # of the chunk that fills
    events: float = 0.0
    count: float = 0.0

    def add(self, events: int, total: int, *, bound: float, chunk: int) -> None:
        """Take what was seen since the last time."""
        bound = min(bound, HIGHEST_BOUND)
        if chunk == 1:
            self._observe(events, total, bound)
            return
        self.events, self.count = self.events + events, self.count + total
        if self.count >= chunk:
            share, events, total = self.events / self.count, self.events, self.count
            whole = int(self.count // chunk)
            self.events = self.count = 0.0
            for run, fraction in zip(self.runs, STAKE_FRACTIONS, strict=True):
                more = whole * math.log1p(fraction * (share / bound - 1))
                run.add(events, total, more)

    def _observe(self, events: int, total: int, bound: float) -> None:
        for run, fraction in zip(self.runs, STAKE_FRACTIONS, strict=True):
            bad = math.log1p(fraction * (1 / bound - 1))
            run.add(events, total, events * bad + (total - events) * math.log1p(-fraction))

    @property
    def strongest(self) -> EvidenceRun:
        return max(self.runs, key=lambda run: run.evidence)

    def memory(self) -> list[float]:
        """Return what `restore` takes."""
        values = [value for run in self.runs for value in (run.evidence, run.events, run.count)]
        return [*values, self.events, self.count]

    def restore(self, memory: Sequence[Any]) -> None:
        """Go on from what `memory` returned. Raises ValueError or TypeError."""
        values = [_number(value) for value in memory]
        if len(values) != 3 * len(STAKE_FRACTIONS) + 2:
            raise ValueError(f'an alarm is {memory!r}')
        self.runs = [
            EvidenceRun(*values[i : i + 3]) for i in range(0, 3 * len(STAKE_FRACTIONS), 3)
        ]
        self.events, self.count = values[-2:]


@dataclass(slots=True)
class ChampionShare:
    """The champion's share: the higher of that since the step began and the recent one."""

    events: float = 0.0
    count: float = 0.0
    recent_events: float = 0.0
    recent_count: float = 0.0

    def add(self, events: int, total: int, minimum: int) -> None:
        """Take what was seen since the last time."""
        keep = 0.5 ** (total / (HALF_LIFE_MINIMUMS * minimum))
        self.events, self.count = self.events + events, self.count + total
        self.recent_events = self.recent_events * keep + events
        self.recent_count = self.recent_count * keep + total

    def share(self, minimum: int) -> float:
        """Return the share; fewer than the minimum count as if the rest had been without."""
        return max(
            self.events / max(self.count, minimum),
            self.recent_events / max(self.recent_count, minimum),
        )


class ShareAlarms:
    """One alarm for each kind of event; see guards.KINDS."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.of = {kind: ShareAlarm() for kind in kinds}
        self.usual = {kind: ChampionShare() for kind in kinds}

    def memory(self) -> dict[str, list[float]]:
        """Return what `restore` takes."""
        return {
            kind: [*alarm.memory(), *astuple(self.usual[kind])] for kind, alarm in self.of.items()
        }

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Go on from what `memory` returned. Raises ValueError, KeyError or TypeError."""
        for kind, alarm in self.of.items():
            *values, a, b, c, d = memory[kind]
            alarm.restore(values)
            self.usual[kind] = ChampionShare(_number(a), _number(b), _number(c), _number(d))


def _number(value: Any) -> float:
    if type(value) is not float or not 0 <= value < 1e15:
        raise ValueError(f'{value!r} is no evidence')
    return value
