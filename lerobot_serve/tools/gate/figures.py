# SPDX-License-Identifier: Apache-2.0
"""All figures of a gate: motions of both policies, tasks, outcomes. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
import math

from lerobot_serve.tools.gate.motion import PolicyMotion, SharedMotion


@dataclass(slots=True)
class TaskFigures:
    """One task: the motions of both policies, and outcomes as successes and failures."""

    chunks: int = 0
    product: float = 0.0
    parent_energy: float = 0.0
    candidate_energy: float = 0.0
    parent: tuple[int, int] = (0, 0)
    candidate: tuple[int, int] = (0, 0)

    def add(self, motion: SharedMotion, chunks: int = 1) -> None:
        """Add the motions of so many chunks."""
        self.chunks += chunks
        self.product += motion.product
        self.parent_energy += motion.parent_energy
        self.candidate_energy += motion.candidate_energy

    @property
    def similarity(self) -> float:
        """The cosine of both motions, in which large ones count more; NaN if nothing moves."""
        if not self.parent_energy and not self.candidate_energy:
            return math.nan
        norm = math.sqrt(self.parent_energy) * math.sqrt(self.candidate_energy)
        return self.product / norm if norm else 0.0


@dataclass(slots=True)
class GateFigures:
    """See the module. `digest` is the SHA-256 of all requests, in order."""

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
            found.add(
                SharedMotion(each.product, each.parent_energy, each.candidate_energy), each.chunks
            )
            found.parent = added(found.parent, each.parent)
            found.candidate = added(found.candidate, each.candidate)
        return found


def added(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """Return the sum of two pairs of counts."""
    return first[0] + second[0], first[1] + second[1]
