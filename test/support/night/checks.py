# SPDX-License-Identifier: Apache-2.0
"""What holds at every moment of a night. One thread."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.router.canary.gate_record import ADMITTED, read_record, record_path
from lerobot_serve_interfaces.msg import CanaryState
from support.night.clock import NightClock
from support.night.world import World

# after every fault the loop continues within this time: the longest step is the evidence of a
# trial, and the robots may be silent for an hour of it
PROGRESS_S = 2.5 * 3600.0
# until a learner that starts has heard what the canary publishes
HEARS_S = 30.0
ON_TRIAL = (CanaryState.WAITING, CanaryState.RUNNING, CanaryState.UNDECIDED, CanaryState.PAUSED)


class Checks:
    """
    See the module; each violation raises AssertionError. `promoted` and `rolled_back` have what
    was seen of the canary, by digest, in order.
    """

    def __init__(self, clock: NightClock, world: World, gates: Path, champion: str) -> None:
        self._clock, self._world, self._gates = clock, world, gates
        self.champion = champion
        self.promoted: list[str] = []
        self.rolled_back: list[str] = []
        self.placed: dict[str, list[str]] = {'a': [], 'b': []}
        self._drives: dict[str, str] = {}
        self.moved = 0
        self._progress_s, self._count = clock.elapsed_s, 0
        self.longest_s = 0.0
        self._builds_since_s = 0.0

    # what is seen

    def on_placed(self, episode: str, slot: str, policy: str) -> None:
        """An episode begins, or moves."""
        self.placed[slot].append(policy)
        self._world.meet(policy, self.champion)
        if slot == 'b' and digest_of(policy) != digest_of(self.champion):
            path = record_path(self._gates, policy)
            assert path.exists(), f'{episode} in slot b by {policy}, which has no gate record'
            record = read_record(path)
            assert record.verdict in ADMITTED, f'{episode} by {policy}: its gate {record.verdict}'
            assert digest_of(record.parent) == digest_of(self.champion), record.parent
        assert digest_of(policy) not in self.rolled_back or slot == 'a', (
            f'{episode} begins with {policy}, which was rolled back'
        )

    def on_chunk(self, episode: str, policy: str, is_flagged: bool) -> None:
        """A robot gets actions."""
        before = self._drives.setdefault(episode, policy)
        if before != policy:
            assert is_flagged, f'{episode}: {before}, then {policy} without POLICY_CHANGED'
            self.moved += 1
            self._drives[episode] = policy

    def on_canary(self, message: CanaryState) -> None:
        """The state of the canary changes."""
        policy = message.planned_policy or message.candidate_policy
        digest = digest_of(policy)
        if not policy:
            return
        if message.state in ON_TRIAL and message.candidate_policy == policy:
            assert digest not in self.rolled_back, f'{policy} was rolled back, and starts again'
        if message.state == CanaryState.PROMOTED and digest not in self.promoted:
            self.promoted.append(digest)
            self._world.promote(policy)
            self._on_progress()
        if message.state == CanaryState.ROLLED_BACK and digest not in self.rolled_back:
            self.rolled_back.append(digest)
            self._on_progress()

    # at each event

    def on_champion(self, champion: str) -> None:
        """Slot a serves this policy now."""
        if champion and digest_of(champion) != digest_of(self.champion):
            assert digest_of(champion) in self.promoted, f'{champion} was never promoted'
            self.champion = champion

    def on_count(self, count: int) -> None:
        """So many steps are in the journal: comparisons, starts, and how they ended."""
        if count != self._count:
            self._count = count
            self._on_progress()
        assert self._clock.elapsed_s - self._progress_s < PROGRESS_S, (
            f'nothing happened for {PROGRESS_S / 3600:g} h'
        )

    def on_parent(self, parent: str, running_s: float) -> None:
        """A learner that runs for so long would build on this version."""
        if digest_of(parent) in self.rolled_back and running_s > HEARS_S:
            self._builds_since_s = self._builds_since_s or self._clock.elapsed_s
            assert self._clock.elapsed_s - self._builds_since_s < HEARS_S, (
                f'the learner builds on {parent}, which was rolled back'
            )
        else:
            self._builds_since_s = 0.0

    def _on_progress(self) -> None:
        now_s = self._clock.elapsed_s
        self.longest_s = max(self.longest_s, now_s - self._progress_s)
        self._progress_s = now_s
