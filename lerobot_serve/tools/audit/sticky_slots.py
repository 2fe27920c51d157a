# SPDX-License-Identifier: Apache-2.0
"""
Checks that an episode keeps its slot, unless a decision with `moved` changes it.

One check for all runs: executed actions, requests and router decisions are joined by client and
episode. Server records are not used: they include probes and shadow copies that reach no robot.
Within a run a decision must precede the records that it moves; a row of an earlier request still
belongs to the previous slot. Files of two machines are merged only roughly in time order, so their
records of an episode are compared after many later episodes. One thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lerobot_serve.tools.audit.check import CheckTally
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun
from lerobot_serve.trace.format.records import (
    ExecutedRecord,
    PlacementRecord,
    RequestRecord,
    TraceRecord,
)

UNCOVERED = 'episodes changed slot; no router trace has them'
# largest offset between the files of one client, in episodes
EPISODES_KEPT = 64
SlotRecord = ExecutedRecord | RequestRecord | PlacementRecord


@dataclass(slots=True)
class SlotSighting:
    """A slot that a run recorded; `expected` is its previous one, empty for the first."""

    run: TraceRun
    slot: str
    expected: str = ''
    positions: list[LinePosition] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class EpisodeSlots:
    """
    Slots of one episode; runs are keyed by number.

    origin    slot in which a router placed it, empty when no trace records it
    firsts    run -> the first slot that it recorded
    now       run -> the expected slot
    left      run -> the previous slot, and the first request after the move
    moved     slot -> the runs that moved the episode there
    suspects  run and slot -> changes that no decision of the run explains
    """

    origin: str = ''
    firsts: dict[int, SlotSighting] = field(default_factory=dict)
    now: dict[int, str] = field(default_factory=dict)
    left: dict[int, tuple[str, int]] = field(default_factory=dict)
    moved: dict[str, set[int]] = field(default_factory=dict)
    suspects: dict[tuple[int, str], SlotSighting] = field(default_factory=dict)

    @property
    def is_covered(self) -> bool:
        """Whether a router has recorded it, which then has the decisions about it, too."""
        return any(sighting.run.role == 'router' for sighting in self.firsts.values())


class StickySlotCheck:
    """See the module. `tallies` has one for each run that records slots."""

    def __init__(self, *, show: int) -> None:
        self._show = max(1, show)
        self._tallies: dict[int, CheckTally] = {}
        self._clients: dict[str, OrderedDict[str, EpisodeSlots]] = {}
        # run -> client, episode and slot of its last record without a finding
        self._last_seen: dict[int, tuple[str, str, str]] = {}
        self.episodes = self.joined = 0

    @property
    def tallies(self) -> list[CheckTally]:
        return list(self._tallies.values())

    def observe(self, run: TraceRun, record: TraceRecord) -> None:
        """Check a record with a slot, the last one of the run; ignore other records."""
        if not isinstance(record, SlotRecord) or run.role == 'server':
            return
        client, episode_id, slot = record.client_id, record.episode_id, record.slot
        current = client, episode_id, slot
        if self._last_seen.get(run.number) == current or not (episode_id and slot):
            return
        if run.number not in self._tallies:
            self._tallies[run.number] = CheckTally('sticky', run, show=self._show)
        self._tallies[run.number].judged += 1
        episode = self._episode(client, episode_id)
        if isinstance(record, PlacementRecord):
            record_decision(episode, run, record)
        if self._is_expected(episode, run, record) and episode.now[run.number] == slot:
            self._last_seen[run.number] = current
        else:
            self._last_seen.pop(run.number, None)

    def finish(self, runs: Sequence[TraceRun]) -> None:
        """Judge the remaining episodes; call after all runs are read."""
        for episodes in self._clients.values():
            for episode in episodes.values():
                self._judge_episode(episode)
        self._clients = {}
        why_not = why_inconclusive(runs)
        for tally in self._tallies.values():
            if why_not and (tally.violations or tally.limitation):
                tally.retract(why_not)

    def _episode(self, client: str, episode_id: str) -> EpisodeSlots:
        episodes = self._clients.setdefault(client, OrderedDict())
        if episode_id not in episodes:
            episodes[episode_id] = EpisodeSlots()
            if len(episodes) > EPISODES_KEPT:
                self._judge_episode(episodes.popitem(last=False)[1])
        return episodes[episode_id]

    def _is_expected(self, episode: EpisodeSlots, run: TraceRun, record: SlotRecord) -> bool:
        """Return whether the slot is the expected one; record a suspect when it is not."""
        slot = record.slot
        if run.number not in episode.firsts:
            episode.firsts[run.number] = SlotSighting(run, slot, '', [run.position], 1)
        expected = episode.now.setdefault(run.number, slot)
        if slot == expected:
            return True
        if is_row_of_left_slot(episode, run, record):
            return True
        if episode.moved.get(slot, set()) - {run.number}:
            move_episode(episode, run, record)
            return True
        suspect = episode.suspects.setdefault(
            (run.number, slot), SlotSighting(run, slot, expected)
        )
        suspect.count += 1
        if len(suspect.positions) < self._show:
            suspect.positions.append(run.position)
        return False

    def _judge_episode(self, episode: EpisodeSlots) -> None:
        """Judge an episode whose records were all read."""
        self.episodes += 1
        self.joined += len(episode.firsts) > 1
        first = next(iter(episode.firsts.values()), None)
        origin = episode.origin or (first.slot if first else '')
        for sighting in episode.firsts.values():
            sighting.expected = origin
            if sighting.slot != origin and not episode.moved.get(sighting.slot):
                self._accuse(episode, sighting)
        for sighting in episode.suspects.values():
            if not episode.moved.get(sighting.slot, set()) - {sighting.run.number}:
                self._accuse(episode, sighting)

    def _accuse(self, episode: EpisodeSlots, sighting: SlotSighting) -> None:
        tally = self._tallies[sighting.run.number]
        if not episode.is_covered:
            # the trace of another router, or of an earlier run of this one, may have the move
            tally.limitation = UNCOVERED
            return
        for position in sighting.positions:
            tally.add_violation(
                f'the episode is in slot {sighting.slot}, was in {sighting.expected}, and no '
                'decision moved it',
                position,
            )
        tally.violations += sighting.count - len(sighting.positions)


def record_decision(episode: EpisodeSlots, run: TraceRun, record: PlacementRecord) -> None:
    """Record a placement or a move by a router."""
    if record.moved:
        episode.moved.setdefault(record.slot, set()).add(run.number)
        move_episode(episode, run, record)
    else:
        episode.origin = episode.origin or record.slot


def move_episode(episode: EpisodeSlots, run: TraceRun, record: SlotRecord) -> None:
    """Change the expected slot of the run from this record on."""
    episode.left[run.number] = episode.now.get(run.number, ''), record.seq or 0
    episode.now[run.number] = record.slot


def is_row_of_left_slot(episode: EpisodeSlots, run: TraceRun, record: SlotRecord) -> bool:
    """Return whether it is a row of a request from before the move."""
    left, first_seq = episode.left.get(run.number, ('', 0))
    if not isinstance(record, ExecutedRecord):
        return False
    return record.slot == left and (record.seq or 0) < first_seq


def why_inconclusive(runs: Sequence[TraceRun]) -> str:
    """Return why the traces may lack a decision, empty when they cannot."""
    routers = [run for run in runs if run.role == 'router']
    if not routers:
        return 'episodes changed slot; no router trace covers the reason'
    if not all(run.is_complete for run in routers):
        return 'episodes changed slot; the router trace is incomplete and may lack the reason'
    return ''
