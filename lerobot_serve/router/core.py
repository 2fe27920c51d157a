# SPDX-License-Identifier: Apache-2.0
"""
Build a router from its parameters: slots, sessions, placements, canary, shadow.

Exists between configure and cleanup. No ROS: clients and transport are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.controller import (
    arm_events,
    CanaryController,
    CANDIDATE,
    CHAMPION,
    slot_facts,
)
from lerobot_serve.router.canary.facts import Facts
from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.data_path.rules import DispatchRules, ShadowRules
from lerobot_serve.router.data_path.transport import Transport
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import effective_shares
from lerobot_serve.router.placement.goal_placement import GoalPlacement
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.replicas.health import HealthRules
from lerobot_serve.router.replicas.replica import Replica, ReplicaReport
from lerobot_serve.router.replicas.slot import overall_health, Slot, VerdictRecords
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.sessions.client_sessions import ClientSessions
from lerobot_serve.router.sessions.manager import SessionManager
from lerobot_serve.router.sessions.opening import ReplicaCallPool, ReplicaClient
from lerobot_serve.router.shadow.qualification import Qualification
from lerobot_serve.router.storage.decisions import DurableDecisions
from lerobot_serve.router.storage.store import Store
from lerobot_serve.router.storage.writer import StoreWriter


class RouterCore:
    """
    See the module. Until `writer.run` has a thread, the caller of a decision writes it.

    `parameters` are those in force: a value set live before wins over the given one;
    `parameter_origins` say which, and where each comes from.
    """

    def __init__(
        self,
        parameters: RouterParameters,
        folder: Path,
        clients: dict[str, ReplicaClient],
        transport: Transport,
        drops: DropCounters,
        *,
        clock: Callable[[], int],
        warn: Callable[[str], None],
        inform: Callable[[str], None],
        set_split: Callable[[int], None],
        given: RouterParameters | None = None,
        now: Callable[[], str] = lambda: 'before',
    ) -> None:
        """
        `given` are the parameters of file and command line, where they differ; `now` returns the
        local time as text. `set_split` changes the parameter split_percent; `warn` and `inform`
        write the log.
        Raises StoreRefused when another router has the folder, or its store is none of ours.
        """
        self.drops, self._clock = drops, clock
        store = Store(folder, parameters.max_remembered_placements, now())
        if store.damage:
            warn(f'state store damaged: {store.damage.text}')
        self.writer = StoreWriter(store, warn, inform)
        if self.writer.text:
            warn(f'{self.writer.text}; routing continues, decisions are not durable')
        self.intent = DurableDecisions(self.writer, clock=clock, now=now, warn=warn)
        self.given = given or parameters
        try:
            self.parameters, self.parameter_origins = self.intent.parameters(
                parameters, self.given
            )
            self._build(clients, transport, warn, inform, set_split)
        except BaseException:
            self.writer.close()
            raise
        for line in self.parameter_origins:
            warn(line)

    def _build(
        self,
        clients: dict[str, ReplicaClient],
        transport: Transport,
        warn: Callable[[str], None],
        inform: Callable[[str], None],
        set_split: Callable[[int], None],
    ) -> None:
        parameters, content, clock = self.parameters, self.writer.content, self._clock
        self.intent.leave_within_ns = to_ns(parameters.episode_drain_timeout_s)
        self.slots = make_slots(parameters, self.intent.bars)
        self.parameter_origins += self.intent.restore(self.slots)
        capacity = parameters.max_remembered_placements
        self.sticky = PlacementTable(capacity, content.placements, self.writer)
        self.stats = SlotStats(
            tuple(self.slots), capacity, verdict_within_ns=parameters.verdict_within_ns
        )
        robots = ClientSessions(
            grace_ns=to_ns(parameters.session_grace_s),
            idle_ns=to_ns(parameters.session_idle_s),
        )
        self.dispatcher = Dispatcher(
            self.slots,
            robots,
            self.sticky,
            dispatch_rules(parameters),
            transport,
            self.stats,
            self.drops,
        )
        self._goal_places = GoalPlacement(self.slots, self.sticky, self.stats)
        self._call_pool = ReplicaCallPool(clients)
        self.control = SessionManager(
            self.dispatcher,
            self._call_pool,
            self.stats,
            self.drops,
            standby=parameters.standby_replicas,
            open_session_timeout_s=parameters.open_session_timeout_s,
            clock=clock,
            warn=warn,
        )
        self.qualification = Qualification(content.shadow, self.writer.learn, warn)
        self.canary = CanaryController(
            parameters,
            self.slots.get(CANDIDATE),
            self.intent,
            set_split=set_split,
            warn=warn,
            inform=inform,
        )
        self.stats.restore_episodes(self.canary.open_episodes(), clock())

    @property
    def replicas(self) -> dict[str, Replica]:
        """Every replica of every slot by its name."""
        return {replica.name: replica for slot in self.slots.values() for replica in slot}

    @property
    def health(self) -> str:
        return overall_health(self.slots)

    def change(self, parameters: RouterParameters) -> None:
        """Bring in what may change live; running episodes stay where they are. Executor."""
        before, self.parameters = self.parameters, parameters
        self.intent.leave_within_ns = to_ns(parameters.episode_drain_timeout_s)
        with self.dispatcher.lock:
            self.dispatcher.forwarder.rules = dispatch_rules(parameters)
        self.stats.verdict_within_ns = parameters.verdict_within_ns
        self.intent.record_parameters(before, parameters, self.given)
        self.canary.change(parameters)

    def update_replica(self, server: str, seen: ReplicaReport) -> str:
        """Record the report of a replica; return what changed. Executor."""
        slot = self.slots[self.replicas[server].slot]
        with self.dispatcher.lock:
            return slot.learn(server, seen)

    def set_available(self, server: str, *, is_there: bool) -> None:
        """Record whether the services of a replica are available. Executor."""
        with self.dispatcher.lock:
            self.replicas[server].set_available(is_there=is_there)

    def place_goal(self, episode_id: str, request_id: str) -> tuple[Placement, Replica]:
        """Choose slot and replica of a goal. Raises NoSlotAvailable. Executor."""
        split_percent = self.dispatcher.forwarder.rules.split_percent
        with self.dispatcher.lock:
            return self._goal_places.place(episode_id, request_id, split_percent, self._clock())

    def goal_refusal(self, slot_name: str, policy: str) -> str:
        """Return why a reply to a goal is withheld; empty when it is not. Any thread."""
        with self.dispatcher.lock:
            return self._goal_places.refusal(slot_name, policy, self._clock())

    def shares(self) -> dict[str, int]:
        """Return the share of new episodes [%] that each slot really gets now."""
        meant = {name: self.dispatcher.forwarder.rules.share_percent(name) for name in self.slots}
        now_ns = self._clock()
        return effective_shares(meant, {n: s.conditions(now_ns) for n, s in self.slots.items()})

    def has_all_reports(self) -> bool:
        """Whether every replica has sent a status."""
        return all(replica.report for replica in self.replicas.values())

    def pin_policies(self) -> None:
        """Pin each slot to its policy as long as any replica serves it."""
        for slot in self.slots.values():
            slot.is_policy_pinned = True

    def check_change(self, old: RouterParameters, new: RouterParameters) -> None:
        """Raise ParameterError for a split that cannot be had now."""
        if new.split_percent == old.split_percent or len(self.slots) < 2:
            return
        self.canary.check_split(old.split_percent, new.split_percent)
        for name, share in (('a', new.split_percent), ('b', 100 - new.split_percent)):
            text = self.slots[name].text
            if share and text:
                raise ParameterError(
                    f'split_percent stays {old.split_percent}: slot {name} would get {share} % '
                    f'and takes no episodes: {text}'
                )

    def record_outcome(self, episode_id: str, outcome: int) -> str:
        """Record an outcome; return why it is rejected. Executor."""
        with self.dispatcher.lock:
            text = self.stats.record_outcome(episode_id, outcome)
        if text:
            self.drops.add('outcome_unknown')
        return text

    def update_canary(self) -> bool:
        """Update the canary; return whether it produced an event. Executor."""
        if len(self.slots) < 2:
            return False
        candidate = self.slots[CANDIDATE]
        candidate.unmet_requirements = self._unmet_requirements(candidate.policy)
        with self.dispatcher.lock:
            facts = (
                slot_facts(self.slots[name], self.stats.slot(name))
                for name in (CANDIDATE, CHAMPION)
            )
            seen_in_shadow = self.qualification.of(candidate.policy)
            now = Facts(
                *facts,
                seen_in_shadow.spreads_mean,
                seen_in_shadow.spreads_count,
                events=arm_events(self.stats.take_events()),
            )
        return self.canary.update(self._clock(), now)

    def _unmet_requirements(self, policy: str) -> str:
        """Return the unmet shadow requirements of the policy of slot b."""
        least = self.parameters.shadow_minimum_hours, self.parameters.shadow_minimum_episodes
        return self.qualification.unmet_requirements(policy, *least) if any(least) else ''

    def run_canary_command(self, word: str, reason: str, *, at_once: bool = False) -> str:
        """Run a command; return its effect. Raises CanaryCommandRejected and NotDurable."""
        return self.canary.control(word, reason, self._clock(), at_once=at_once)

    def expire_episodes(self) -> None:
        """Mark overdue episodes unreported. Once a second; executor."""
        with self.dispatcher.lock:
            self.stats.expire(self._clock())

    def close(self) -> None:
        """End the calls and release the folder."""
        self._call_pool.close()
        self.writer.close()


def make_slots(
    parameters: RouterParameters, bars: VerdictRecords | None = None
) -> dict[str, Slot]:
    """Return the slots by name."""
    of_slot, of_replica = (
        HealthRules(
            failures_to_unhealthy,
            parameters.healthy_threshold,
            to_ns(parameters.probe_initial_interval_s),
            to_ns(parameters.probe_max_interval_s),
        )
        for failures_to_unhealthy in (
            parameters.slot_unhealthy_threshold,
            parameters.replica_unhealthy_threshold,
        )
    )
    return {
        name: Slot(name, servers, of_slot, of_replica, bars)
        for name, servers in parameters.slots.items()
    }


def dispatch_rules(parameters: RouterParameters) -> DispatchRules:
    return DispatchRules(
        parameters.split_percent,
        to_ns(parameters.reply_timeout_s),
        parameters.hedge_factor,
        parameters.hedge_budget_percent,
        parameters.spare_slots,
    )


def shadow_rules(parameters: RouterParameters) -> ShadowRules:
    return ShadowRules(parameters.shadow_sample_percent, parameters.shadow_spread_percent)


def to_ns(seconds: float) -> int:
    return int(seconds * 1e9)


def replica_report(status: Any) -> ReplicaReport:
    """Return the part of a ServerStatus that the router uses."""
    return ReplicaReport(
        status.policy,
        status.slot,
        status.state_class,
        status.state == status.ACTIVE and status.warmed_up,
        status.load,
        status.active_sessions,
        status.max_sessions,
        status.text,
    )
