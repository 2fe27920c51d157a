"""
What happened in each slot: episodes and how they ended, answers, and what robots did with them.

Everything is counted since the start and only rises; who wants to know of a stretch of time takes
differences. An episode is ended when its robot begins another one or goes; one whose end nobody
judged in time is unreported. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from lerobot_serve.router.latency import Latency
from lerobot_serve.router.sticky import Placement
from lerobot_serve.telemetry.buckets import Buckets
from lerobot_serve.wire.executed import Executed

# EpisodeOutcome.outcome -> how it is counted
OUTCOMES = {1: 'success', 2: 'failure', 3: 'aborted'}
# whoever judges has so long after the episode's end
JUDGE_WITHIN_NS = 30_000_000_000


@dataclass(slots=True)
class SlotTally:
    """
    One slot's. `ended` counts episodes by how they ended: success, failure, aborted, unreported;
    `moved` are those that had to leave, which count in no other way.
    """

    latency: Latency = field(default_factory=Latency)
    buckets: Buckets = field(default_factory=Buckets)
    episodes: int = 0
    requests: int = 0
    answers: int = 0
    # requests of an episode that had its slot, and those with which one got it
    cache_hits: int = 0
    cache_misses: int = 0
    moved: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    commands: int = 0
    fallbacks: int = 0
    trips: int = 0
    stalls: int = 0
    oldest_age_s: float = 0.0


@dataclass(slots=True)
class Episode:
    """`ended_ns` is None while it runs."""

    slot: str
    ended_ns: int | None = None
    ended_as: str = ''
    has_moved: bool = False


class Tally:
    """Remembers up to `capacity` episodes, whose outcomes can be told."""

    def __init__(self, slots: tuple[str, ...], capacity: int) -> None:
        self._slots = {name: SlotTally() for name in slots}
        self._capacity = capacity
        self._episodes: OrderedDict[str, Episode] = OrderedDict()
        self._present: dict[str, str] = {}
        self._waiting: OrderedDict[str, Episode] = OrderedDict()

    def slot(self, name: str) -> SlotTally:
        return self._slots[name]

    def requested(self, client_id: str, placement: Placement, now_ns: int) -> None:
        """Note a request, and with it the end of the robot's episode before."""
        tally = self._slots[placement.slot]
        tally.requests += 1
        tally.cache_hits += placement.cached
        tally.cache_misses += not placement.cached
        episode_id = '' if placement.degraded else placement.key
        before = self._present.get(client_id, '')
        if before != episode_id:
            self.ended(client_id, now_ns)
            self._present[client_id] = episode_id
        episode = self._episodes.get(episode_id)
        if episode:
            self._resume(episode_id, episode)
        elif episode_id:
            self._begin(episode_id, placement)

    def _resume(self, episode_id: str, episode: Episode) -> None:
        """It goes on: a session that ended and was opened again ended no episode."""
        if self._waiting.pop(episode_id, None):
            episode.ended_ns = None

    def _begin(self, episode_id: str, placement: Placement) -> None:
        # a router that was restarted knows it, but it was counted before
        self._episodes[episode_id] = Episode(placement.slot, has_moved=placement.moved)
        self._slots[placement.slot].episodes += not (placement.cached or placement.moved)
        while len(self._episodes) > self._capacity:
            forgotten, episode = self._episodes.popitem(last=False)
            if self._waiting.pop(forgotten, None):
                self._end(episode, 'unreported')

    def ended(self, client_id: str, now_ns: int) -> None:
        """A robot's episode is over: it began another one, or is gone."""
        episode_id = self._present.pop(client_id, '')
        episode = self._episodes.get(episode_id)
        if episode and episode.ended_ns is None:
            episode.ended_ns = now_ns
            if not episode.ended_as:
                self._waiting[episode_id] = episode

    def moved(self, episode_id: str, slot: str) -> None:
        """An episode had to leave for `slot`; how it ends says nothing of either."""
        episode = self._episodes.get(episode_id)
        # one that was judged counts as it was judged
        if episode is None or episode.ended_as:
            return
        if not episode.has_moved:
            self._slots[episode.slot].moved += 1
        episode.has_moved, episode.slot = True, slot

    def answered(self, slot: str, latency_ms: float) -> None:
        """A robot was answered with actions."""
        self._slots[slot].answers += 1
        self._slots[slot].latency.add(latency_ms)
        self._slots[slot].buckets.add(latency_ms / 1e3)

    def failed(self, slot: str, reason: str) -> None:
        """A slot could not answer a request."""
        self._slots[slot].failed[reason] += 1

    def executed(self, slot: str, before: Executed, now: Executed) -> None:
        """Add what a robot did between two requests; nothing when it was started anew."""
        commands, fallbacks = now.actions - before.actions, now.fallbacks - before.fallbacks
        trips, stalls = now.trips - before.trips, now.stalls - before.stalls
        if min(commands, fallbacks, trips, stalls) < 0:
            return
        tally = self._slots[slot]
        tally.commands += commands
        tally.fallbacks += fallbacks
        tally.trips += trips
        tally.stalls += stalls
        tally.oldest_age_s = max(tally.oldest_age_s, now.oldest_age_s)

    def outcome(self, episode_id: str, outcome: int) -> str:
        """
        Note how an episode ended; return why that does not count, in words. The first outcome
        counts, and the same again is no news.
        """
        episode = self._episodes.get(episode_id)
        if episode is None:
            return f'no episode {episode_id!r} was routed here'
        ended_as = OUTCOMES.get(outcome)
        if ended_as is None:
            return f'outcome must be one of {", ".join(map(str, OUTCOMES))}, got {outcome}'
        if episode.ended_as not in ('', ended_as):
            return f'episode {episode_id!r} has counted as {episode.ended_as} already'
        self._waiting.pop(episode_id, None)
        self._end(episode, ended_as)
        return ''

    def look(self, now_ns: int) -> None:
        """Give up waiting for judges that take too long."""
        while self._waiting:
            episode_id, episode = next(iter(self._waiting.items()))
            if now_ns - episode.ended_ns < JUDGE_WITHIN_NS:
                return
            del self._waiting[episode_id]
            self._end(episode, 'unreported')

    def _end(self, episode: Episode, ended_as: str) -> None:
        if not (episode.has_moved or episode.ended_as):
            self._slots[episode.slot].ended[ended_as] += 1
            episode.ended_as = ended_as
