# SPDX-License-Identifier: Apache-2.0
"""What a learner is set to, and what it shows. Plain data; any thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
import math
from pathlib import Path

from lerobot_serve.learner.rounds.states import Phase

SEEN_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What may change while the learner runs; a running round keeps its budget."""

    episodes_per_round: int = 50
    round_period_s: float = 0.0
    budget_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """
    `parent` is the folder of the policy that the first round builds on; None for none.
    `builds_on_promoted`: only on versions that a canary promoted, else on the newest one.
    """

    folder: Path
    store: Path
    host: str
    parent: Path | None = None
    trainer: str = 'builtin'
    seed: int = 0
    vcodec: str = 'png'
    episode_folders: tuple[Path, ...] = ()
    filters: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    builds_on_promoted: bool = False

    @property
    def dataset(self) -> Path:
        return self.folder / 'dataset'

    @property
    def rounds(self) -> Path:
        return self.folder / 'rounds'


@dataclass(frozen=True, slots=True)
class Shown:
    """What msg/LearnerState and the metrics have of a learner. Replaced as a whole."""

    phase: Phase = Phase.WAITING
    text: str = ''
    round: int = 0
    parent: str = ''
    latest: str = ''
    episodes: int = 0
    episodes_new: int = 0
    episodes_wanted: int = 0
    progress: float = math.nan
    loss: float = math.nan
    remaining_s: float = math.nan
    dropped: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """
    What was refused or failed, by reason, and how rounds ended, since start. An episode that is
    looked at again and again counts once for each reason.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def drop(self, reason: str, key: str = '') -> bool:
        """Count; return whether this is new for the key."""
        if key and (reason, key) in self._seen:
            return False
        if key:
            # announcements of others are not bounded
            if len(self._seen) >= SEEN_LIMIT:
                self._seen.clear()
            self._seen.add((reason, key))
        self.dropped[reason] += 1
        return True
