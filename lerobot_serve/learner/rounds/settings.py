# SPDX-License-Identifier: Apache-2.0
"""What a learner is set to, counts and tells. Plain data; any thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lerobot_serve.contract.records import LearnerState
from lerobot_serve.learner.parameters import LearnerParameters

SEEN_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """
    What a learner has at start. `parent` is the folder of the policy that the first round builds
    on; None for none.
    """

    folder: Path
    store: Path
    host: str
    parent: Path | None
    parameters: LearnerParameters

    @property
    def dataset(self) -> Path:
        return self.folder / 'dataset'

    @property
    def rounds(self) -> Path:
        return self.folder / 'rounds'


class LearnerListener(Protocol):
    """What a learner calls, in the thread `rounds`; the node implements it."""

    def on_state(self, shown: LearnerState) -> None:
        """Show a state, which lacks time and name: at each change, and each second."""

    def on_version(self, version_id: str) -> None:
        """Announce a version of the store."""

    def log_info(self, text: str) -> None: ...

    def log_warning(self, text: str) -> None: ...


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
