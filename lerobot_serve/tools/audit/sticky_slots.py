"""
An episode keeps its slot for its whole life, unless a decision with `moved` sends it elsewhere.

One for all runs: what an edge executed, what it asked and what a router decided are joined by
client and episode. What a server answered is not looked at: it may be a copy, for a trial or in
shadow, that no robot hears of. Within a run a decision must come before what it moves; a row of an
earlier request is still of the slot that was left. Files of two machines are read only about in
the order of time, so what two runs tell is compared when the episode is long over. One thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lerobot_serve.tools.audit.check import CheckTally
from lerobot_serve.tools.traces.fields import integer, Record, table, text
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun

# so far may the files of a client be apart, in episodes
EPISODES_KEPT = 64
KINDS = ('executed', 'request', 'placement')


@dataclass(slots=True)
class SlotSighting:
    """A slot that a run tells of; `expected` is the one it told before, empty for its first."""

    run: TraceRun
    slot: str
    expected: str = ''
    places: list[LinePosition] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class EpisodeSlots:
    """
    What is known of one; runs are keys by their numbers.

    origin    where a router placed it, empty when no trace tells
    firsts    run -> the first slot that it tells
    now       run -> where it should be
    left      run -> the slot that it left last, and the first request that was elsewhere
    moved     slot -> the runs that moved it there
    suspects  run and slot -> what no decision of the run explains
    """

    origin: str = ''
    firsts: dict[int, SlotSighting] = field(default_factory=dict)
    now: dict[int, str] = field(default_factory=dict)
    left: dict[int, tuple[str, int]] = field(default_factory=dict)
    moved: dict[str, set[int]] = field(default_factory=dict)
    suspects: dict[tuple[int, str], SlotSighting] = field(default_factory=dict)


class StickySlotCheck:
    """See the module. `tallies` has one for each run that tells of slots."""

    def __init__(self, *, show: int) -> None:
        self._show = max(1, show)
        self._tallies: dict[int, CheckTally] = {}
        self._clients: dict[str, OrderedDict[str, EpisodeSlots]] = {}
        # run -> the client, episode and slot that it told of last, and nothing was wrong
        self._latest: dict[int, tuple[str, str, str]] = {}
        self.episodes = self.joined = 0

    @property
    def tallies(self) -> list[CheckTally]:
        return list(self._tallies.values())

    def see(self, run: TraceRun, record: Record) -> None:
        """Look at a record of one of KINDS, which the run handed out last."""
        if run.role == 'server':
            return
        kind = record['kind']
        where = table(record, 'routing') if kind == 'request' else record
        client, episode_id = text(record, 'client'), text(record, 'episode_id')
        told = client, episode_id, text(where, 'slot')
        if self._latest.get(run.number) == told or not (episode_id and told[2]):
            return
        if run.number not in self._tallies:
            self._tallies[run.number] = CheckTally('sticky', run, show=self._show)
        self._tallies[run.number].judged += 1
        episode = self._episode(client, episode_id)
        if kind == 'placement':
            note_decision(episode, run, record, told[2])
        if self._fits(episode, run, record, told[2]) and episode.now[run.number] == told[2]:
            self._latest[run.number] = told
        else:
            self._latest.pop(run.number, None)

    def finish(self, runs: Sequence[TraceRun]) -> None:
        """All runs are at their ends, and it is known which of them are complete."""
        for episodes in self._clients.values():
            for episode in episodes.values():
                self._settle(episode)
        self._clients = {}
        why_not = why_inconclusive(runs)
        for tally in self._tallies.values():
            if tally.violations and why_not:
                tally.withdraw(why_not)

    def _episode(self, client: str, episode_id: str) -> EpisodeSlots:
        episodes = self._clients.setdefault(client, OrderedDict())
        if episode_id not in episodes:
            episodes[episode_id] = EpisodeSlots()
            if len(episodes) > EPISODES_KEPT:
                self._settle(episodes.popitem(last=False)[1])
        return episodes[episode_id]

    def _fits(self, episode: EpisodeSlots, run: TraceRun, record: Record, slot: str) -> bool:
        """Return whether the run tells what it told before; note it when it does not."""
        if run.number not in episode.firsts:
            episode.firsts[run.number] = SlotSighting(run, slot, '', [run.place], 1)
        expected = episode.now.setdefault(run.number, slot)
        if slot == expected:
            return True
        if is_row_of_left_slot(episode, run, record, slot):
            return True
        if episode.moved.get(slot, set()) - {run.number}:
            move_episode(episode, run, record, slot)
            return True
        suspect = episode.suspects.setdefault(
            (run.number, slot), SlotSighting(run, slot, expected)
        )
        suspect.count += 1
        if len(suspect.places) < self._show:
            suspect.places.append(run.place)
        return False

    def _settle(self, episode: EpisodeSlots) -> None:
        """Judge an episode of which all was read."""
        self.episodes += 1
        self.joined += len(episode.firsts) > 1
        first = next(iter(episode.firsts.values()), None)
        origin = episode.origin or (first.slot if first else '')
        for told in episode.firsts.values():
            told.expected = origin
            if told.slot != origin and not episode.moved.get(told.slot):
                self._violate(told)
        for told in episode.suspects.values():
            if not episode.moved.get(told.slot, set()) - {told.run.number}:
                self._violate(told)

    def _violate(self, told: SlotSighting) -> None:
        tally = self._tallies[told.run.number]
        for place in told.places:
            tally.violated(
                f'the episode is in slot {told.slot}, it was in {told.expected} and no decision '
                'moved it',
                place,
            )
        tally.violations += told.count - len(told.places)


def note_decision(episode: EpisodeSlots, run: TraceRun, record: Record, slot: str) -> None:
    """A router placed an episode, or moved it."""
    if record.get('moved') is True:
        episode.moved.setdefault(slot, set()).add(run.number)
        move_episode(episode, run, record, slot)
    else:
        episode.origin = episode.origin or slot


def move_episode(episode: EpisodeSlots, run: TraceRun, record: Record, slot: str) -> None:
    """From this record on the run has the episode in another slot."""
    episode.left[run.number] = episode.now.get(run.number, ''), integer(record, 'seq') or 0
    episode.now[run.number] = slot


def is_row_of_left_slot(episode: EpisodeSlots, run: TraceRun, record: Record, slot: str) -> bool:
    """Return whether it is a row that was asked for before the episode was moved."""
    left, first_seq = episode.left.get(run.number, ('', 0))
    return (
        record['kind'] == 'executed' and slot == left and (integer(record, 'seq') or 0) < first_seq
    )


def why_inconclusive(runs: Sequence[TraceRun]) -> str:
    """Return why a decision may exist that is not in the traces, empty when none can."""
    routers = [run for run in runs if run.role == 'router']
    if not routers:
        return 'episodes changed their slot, and there is no trace of a router to say why'
    if not all(run.is_complete for run in routers):
        return 'episodes changed their slot, and what says why may be among what is missing'
    return ''
