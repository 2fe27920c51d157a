# SPDX-License-Identifier: Apache-2.0
"""
Counters of each slot: episodes by outcome, replies, and executed commands.

Counters rise from the start of the process. An episode ends when its client begins another one or
closes its session; without an outcome within `verdict_within_ns` it is unreported. Each begin and
end is an event for the canary, which compares episodes by the slot in which they began. No ROS;
called under RoutingTable.lock.
"""

from __future__ import annotations

from collections import Counter, deque, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.names import client_of_episode
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.router.canary.facts import ARM_OF_SLOT, BEGUN, EpisodeEvent, SLOT_OF_ARM
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.replicas.latency import RecentLatency
from lerobot_serve.telemetry.durations import Histogram

# EpisodeOutcome.outcome -> name of the counter
OUTCOMES = {int(each): each.word for each in EpisodeOutcome.Outcome}
HOUR_NS = 3_600 * 10**9
MOVED = 'the episode moved between slots: it counts as moved, and its outcome for neither slot'
# events kept until the next update of the canary, a fraction of a second later
EVENTS_LIMIT = 100_000


@dataclass(slots=True)
class SlotCounters:
    """
    Counters of one slot. `ended` counts episodes by outcome: success, failure, aborted,
    unreported. `moved` counts episodes that left the slot; they are not in `ended`.
    """

    latency: RecentLatency = field(default_factory=RecentLatency)
    buckets: Histogram = field(default_factory=Histogram)
    episodes: int = 0
    requests: int = 0
    chunks: int = 0
    # requests of placed episodes, and requests that placed an episode
    cache_hits: int = 0
    cache_misses: int = 0
    moved: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    commands: int = 0
    fallbacks: int = 0
    trips: int = 0
    stalls: int = 0
    # robots that came to rest until a person acts
    halts: int = 0
    oldest_age_s: float = 0.0


@dataclass(slots=True)
class RoutedEpisode:
    """
    An episode; `ended_ns` is None while it runs, `outcome_name` empty without an outcome that
    counts. `reported` is the first outcome that was reported, also of an episode that moved.
    """

    initial_slot: str
    ended_ns: int | None = None
    outcome_name: str = ''
    has_moved: bool = False
    reported: str = ''
    # empty after a restart, until its next request
    client_id: str = ''


@dataclass(frozen=True, slots=True)
class OutcomeReceipt:
    """
    The reply to a reported outcome; `text` says why it is refused, or does not count, or counts
    already. `is_new` is False for a repetition.
    """

    text: str
    is_accepted: bool = False
    is_new: bool = False


class SlotStats:
    """
    Counters of all slots, and up to `capacity` episodes. An outcome is accepted until
    `verdict_within_ns` after the end of the episode; beyond the capacity, the oldest episodes
    become unreported at once. `store_event` queues an event for the store and returns its number;
    `event_number` is that of the last one.
    """

    def __init__(
        self,
        slots: tuple[str, ...],
        capacity: int,
        *,
        verdict_within_ns: int = 24 * HOUR_NS,
        store_event: Callable[[EpisodeEvent], int] | None = None,
    ) -> None:
        self.verdict_within_ns, self._store_event = verdict_within_ns, store_event
        self.event_number = 0
        # whether other routers may have begun an episode
        self.is_shared = False
        self._events: deque[EpisodeEvent] = deque(maxlen=EVENTS_LIMIT)
        self._slots = {name: SlotCounters() for name in slots}
        self._capacity = capacity
        self._episodes: OrderedDict[str, RoutedEpisode] = OrderedDict()
        self._current_episodes: dict[str, str] = {}
        # placed by a goal, and without a request yet; at most `capacity`
        self._of_goals: OrderedDict[str, None] = OrderedDict()
        self._awaiting_outcome: OrderedDict[str, RoutedEpisode] = OrderedDict()

    def slot(self, name: str) -> SlotCounters:
        return self._slots[name]

    def take_events(self) -> tuple[EpisodeEvent, ...]:
        """Return the begins and ends of episodes since the last call, in order, with robots."""
        events = tuple(
            each._replace(robot=self._client_of(each.episode_id)) for each in self._events
        )
        self._events.clear()
        return events

    def restore_episodes(self, events: Iterable[EpisodeEvent], now_ns: int) -> None:
        """Restore episodes of a previous run from their begins and ends."""
        for episode_id, what, arm, _ in events:
            if what == BEGUN and episode_id in self._episodes:
                continue
            slot = SLOT_OF_ARM[arm]
            episode = self._episodes.setdefault(episode_id, RoutedEpisode(slot, now_ns))
            if what == 'moved':
                episode.has_moved = True
            elif what != BEGUN:
                episode.outcome_name = what
                episode.reported = what if what in OUTCOMES.values() else ''
            if episode.outcome_name:
                self._awaiting_outcome.pop(episode_id, None)
            else:
                self._awaiting_outcome[episode_id] = episode
        self._forget_oldest()

    def replay(self, events: Iterable[EpisodeEvent], number: int) -> None:
        """Let the canary count events of a previous run first; `number` is that of the last."""
        self._events.extend(events)
        self.event_number = number

    def adopt_episode(self, episode_id: str, placement: Placement, now_ns: int) -> None:
        """Accept outcomes of an episode that a previous run, or another router, has served."""
        if episode_id in self._episodes or episode_id in self._of_goals:
            return
        episode = RoutedEpisode(placement.slot, now_ns, has_moved=placement.moved)
        self._episodes[episode_id] = self._awaiting_outcome[episode_id] = episode

    def record_goal(self, episode_id: str) -> None:
        """
        Record that a goal has placed an episode. It counts from its first request on: a goal has
        no client, and an episode of goals alone no end.
        """
        self._of_goals[episode_id] = None
        while len(self._of_goals) > self._capacity:
            self._of_goals.popitem(last=False)

    def record_request(self, client_id: str, placement: Placement, now_ns: int) -> None:
        """Record a request, and with it the end of the client's previous episode."""
        stats = self._slots[placement.slot]
        stats.requests += 1
        stats.cache_hits += placement.sticky
        stats.cache_misses += not placement.sticky
        episode_id = '' if placement.missing_episode_id else placement.routing_key
        before = self._current_episodes.get(client_id, '')
        if before != episode_id:
            self.end_episode(client_id, now_ns)
            self._current_episodes[client_id] = episode_id
        episode = self._episodes.get(episode_id)
        if episode:
            # whose it is, it stays: another client cannot report its outcome
            episode.client_id = episode.client_id or client_id
            self._resume(episode_id, episode)
            if placement.moved and not episode.has_moved:
                # the episode moved shortly before a restart; the move was not stored
                self.record_move(episode_id)
        elif episode_id:
            self._begin(episode_id, placement, client_id)

    def _resume(self, episode_id: str, episode: RoutedEpisode) -> None:
        """Resume an episode: a reopened session does not end it."""
        if self._awaiting_outcome.pop(episode_id, None):
            episode.ended_ns = None

    def _begin(self, episode_id: str, placement: Placement, client_id: str) -> None:
        # a sticky or moved episode was counted before a restart, unless a goal has placed it
        is_of_goal = episode_id in self._of_goals
        self._of_goals.pop(episode_id, None)
        slot = placement.slot
        is_new = not placement.moved and (is_of_goal or not placement.sticky)
        self._episodes[episode_id] = RoutedEpisode(
            slot, has_moved=placement.moved, client_id=client_id
        )
        self._slots[slot].episodes += is_new
        if is_new:
            self._add_event(episode_id, BEGUN, slot)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._episodes) > self._capacity:
            forgotten, episode = self._episodes.popitem(last=False)
            if self._awaiting_outcome.pop(forgotten, None):
                self._end(forgotten, episode, 'unreported')

    def end_episode(self, client_id: str, now_ns: int) -> None:
        """End the episode of a client that began another one or closed its session."""
        episode_id = self._current_episodes.pop(client_id, '')
        episode = self._episodes.get(episode_id)
        if episode and episode.ended_ns is None:
            episode.ended_ns = now_ns
            if not episode.outcome_name:
                self._awaiting_outcome[episode_id] = episode

    def record_move(self, episode_id: str, before: str = '') -> None:
        """
        Record a move; the outcome of a moved episode counts for neither slot. `before` is the slot
        that it leaves, for one that began at another router of a shared state.
        """
        if self.is_shared and before and episode_id and episode_id not in self._episodes:
            self._episodes[episode_id] = RoutedEpisode(before)
        episode = self._episodes.get(episode_id)
        # an outcome before the move counts
        if episode is None or episode.outcome_name:
            return
        if not episode.has_moved:
            self._slots[episode.initial_slot].moved += 1
            self._add_event(episode_id, 'moved', episode.initial_slot)
        episode.has_moved = True

    def record_reply(
        self, slot: str, latency_ms: float, *, in_slot_ms: float | None = None
    ) -> None:
        """
        Record a reply with actions. Of a request that came from another slot, `in_slot_ms` is what
        it waited in this one: a guard compares slots.
        """
        self._slots[slot].chunks += 1
        self._slots[slot].latency.add(latency_ms if in_slot_ms is None else in_slot_ms)
        self._slots[slot].buckets.add(latency_ms / 1e3)

    def restart_latency(self, slot: str) -> None:
        """Forget the latency of recent replies: what comes is of another policy or step."""
        self._slots[slot].latency = RecentLatency()

    def record_failure(self, slot: str, reason: str) -> None:
        """Record a request that a slot failed."""
        self._slots[slot].failed[reason] += 1

    def record_executed(self, slot: str, before: ExecutionReport, now: ExecutionReport) -> None:
        """Add the commands between two reports; skip a restart of the robot (counters fell)."""
        commands, fallbacks = now.actions - before.actions, now.fallbacks - before.fallbacks
        trips, stalls = now.trips - before.trips, now.stalls - before.stalls
        if min(commands, fallbacks, trips, stalls) < 0:
            return
        stats = self._slots[slot]
        stats.commands += commands
        stats.fallbacks += fallbacks
        stats.trips += trips
        stats.stalls += stalls
        stats.oldest_age_s = max(stats.oldest_age_s, now.oldest_age_s)

    def record_halt(self, slot: str) -> None:
        """Record that a robot came to rest until a person acts: cage latched, stop called."""
        self._slots[slot].halts += 1

    def record_outcome(self, episode_id: str, outcome: int) -> OutcomeReceipt:
        """
        Record an outcome; return the reply. Only the first outcome counts; repeating the same one
        is allowed.
        """
        episode, outcome_name = self._episodes.get(episode_id), OUTCOMES.get(outcome)
        if episode is None:
            return OutcomeReceipt(f'no episode {episode_id!r} was routed here')
        if outcome_name is None:
            allowed = ', '.join(map(str, OUTCOMES))
            return OutcomeReceipt(f'outcome must be one of {allowed}, got {outcome}')
        known = episode.outcome_name or episode.reported
        if known not in ('', outcome_name):
            how = 'already counts' if episode.outcome_name else 'was already reported'
            return OutcomeReceipt(f'episode {episode_id!r} {how} as {known}')
        is_new, episode.reported = not episode.reported, outcome_name
        self._awaiting_outcome.pop(episode_id, None)
        self._end(episode_id, episode, outcome_name)
        notes = [] if is_new else ['was reported before; nothing was changed']
        if not episode.outcome_name:
            notes.append(MOVED)
        return OutcomeReceipt('; '.join(notes), is_accepted=True, is_new=is_new)

    def is_of(self, episode_id: str, client_id: str) -> bool:
        """Return whether a client requested an episode since the start."""
        episode = self._episodes.get(episode_id)
        return episode is not None and bool(client_id) and episode.client_id == client_id

    def _client_of(self, episode_id: str) -> str:
        """Return the client that requested an episode, or that it is named after."""
        episode = self._episodes.get(episode_id)
        return (episode.client_id if episode else '') or client_of_episode(episode_id)

    def initial_slot(self, episode_id: str) -> str:
        """Return the slot in which an episode began; empty if it is not known."""
        episode = self._episodes.get(episode_id)
        return episode.initial_slot if episode else ''

    def expire(self, now_ns: int) -> None:
        """Mark episodes with an overdue outcome as unreported."""
        while self._awaiting_outcome:
            episode_id, episode = next(iter(self._awaiting_outcome.items()))
            ended_ns = episode.ended_ns
            if ended_ns is not None and now_ns - ended_ns < self.verdict_within_ns:
                return
            del self._awaiting_outcome[episode_id]
            self._end(episode_id, episode, 'unreported')

    def _end(self, episode_id: str, episode: RoutedEpisode, outcome_name: str) -> None:
        if not (episode.has_moved or episode.outcome_name):
            self._add_event(episode_id, outcome_name, episode.initial_slot)
            self._slots[episode.initial_slot].ended[outcome_name] += 1
            episode.outcome_name = outcome_name

    def _add_event(self, episode_id: str, what: str, slot: str) -> None:
        # a rollout has two slots
        if arm := ARM_OF_SLOT.get(slot):
            event = EpisodeEvent(episode_id, what, arm)
            self._events.append(event)
            if self._store_event:
                self.event_number = self._store_event(event)
