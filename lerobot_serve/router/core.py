# SPDX-License-Identifier: Apache-2.0
"""
Build a router from its parameters: slots, sessions, placements, canary, shadow.

A RouterCore exists between configure and cleanup. No ROS: clients and transport are arguments.
Called by the executor thread unless a method names other threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.fingerprint import digest_of, weights_of
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.api.messages import shadow_divergence
from lerobot_serve.router.canary.controller import CanaryController
from lerobot_serve.router.canary.facts import CANDIDATE, CHAMPION, EpisodeEvent, Facts
from lerobot_serve.router.canary.gate_record import (
    ADMITTED_BEFORE,
    GateRecord,
    GateRecords,
    SAME_FILES,
)
from lerobot_serve.router.canary.record import CanaryEvent
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.data_path.request_observer import RequestObservers
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.links import ParameterSource, RouterLinks
from lerobot_serve.router.monitoring.decision_publisher import DecisionPublisher
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.replicas.slot_stats import OutcomeReceipt, OUTCOMES
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.job_queue import JobQueue
from lerobot_serve.router.sessions.manager import SessionManager
from lerobot_serve.router.shadow.comparator import ShadowComparator, ShadowComparison
from lerobot_serve.router.shadow.feed import ShadowFeed
from lerobot_serve.router.shadow.qualification import Qualification
from lerobot_serve.router.shadow.sessions import SecondDraws
from lerobot_serve.router.shared_state.opening import open_state
from lerobot_serve.router.shared_state.shared_state import SharedState
from lerobot_serve.router.storage.decisions import DurableDecisions
from lerobot_serve.router.storage.records import COUNTED_UNTIL, counted_until, SPLIT
from lerobot_serve.router.storage.writer import StoreWriter
from lerobot_serve.trace.format.records import RecordIds
from lerobot_serve_interfaces.msg import ServerStatus as ServerStatusMessage

T = TypeVar('T')
GATE_UNREAD = 'its gate record is not read yet'


class RouterHost(Protocol):
    """The part of the node that metrics, services and goals use."""

    # state of ServerStatus, and its text
    server_state: tuple[int, str]

    @property
    def core(self) -> RouterCore | None:
        """The core; None unless configured."""

    def run_in_control_thread(self, core: RouterCore, work: Callable[[], T]) -> Awaitable[T]: ...

    def until_durable(self, core: RouterCore) -> Awaitable[str]: ...

    def poll(self) -> None: ...

    def status(self) -> ServerStatusMessage: ...

    def warn(self, text: str) -> None: ...


class RouterCore:
    """
    See the module. Before the thread `store` runs, the caller of a decision writes it.

    `parameters` are those in force: a restored live value overrides the given one.
    `parameter_origins` are log lines about restored values. The thread `control` runs `jobs`.
    """

    def __init__(
        self,
        source: ParameterSource,
        folder: Path,
        links: RouterLinks,
        drops: DropCounters,
        context: NodeContext,
    ) -> None:
        """Open the store and build the router. Raises StoreRefused."""
        self.drops, self.links, self._context = drops, links, context
        self.recorder, self.jobs = links.recorder, JobQueue()
        # whether sessions and requests are accepted; whether refusals are with DRAINING
        self.is_open = self.is_drained = False
        self._given, self._set_own = source.given, source.set_own
        warn = context.log_warning
        store, self.follower = open_state(source.current, folder, context)
        if store.damage:
            warn(f'state store damaged: {store.damage.text}')
        self.writer = StoreWriter(store, warn, context.log_info)
        if self.writer.text:
            warn(f'{self.writer.text}; routing continues, decisions are not durable')
        self.decisions = DurableDecisions(self.writer, context)
        try:
            self.parameters, self.parameter_origins = self.decisions.parameters(
                source.current, source.given
            )
            self._build()
            self.shared = self._share()
        except BaseException:
            self.writer.close()
            raise
        for line in self.parameter_origins:
            warn(line)

    def _build(self) -> None:
        parameters, content, context = self.parameters, self.writer.store.content, self._context
        self.decisions.leave_within_ns = parameters.leave_within_ns
        self.table = self._make_table()
        folder = parameters.gate_folder
        self._gate_records = GateRecords(Path(folder)) if folder else None
        # digests of policies whose admission is in the trace
        self._admissions: set[str] = set()
        self.qualification = Qualification(
            content.shadow, self.writer.save_shadow_record, context.log_warning
        )
        self.feed = self._make_feed()
        self._publisher = DecisionPublisher(self.links.publish, self.drops, context)
        own = (self.recorder, self._publisher, self.feed)
        observer = RequestObservers(each for each in (*own, *self.links.observers) if each)
        self._call_pool = ReplicaCallPool(self.links.clients)
        self.session_manager = SessionManager(
            self.table, self._call_pool, self.drops, observer, context
        )
        self.dispatcher = Dispatcher(
            self.table,
            self.links.transport,
            observer,
            self.drops,
            self._reopen_session,
            self._record_swap,
        )
        self.canary = CanaryController(
            parameters,
            self.slots.get(CANDIDATE),
            self.decisions,
            context,
            set_split=lambda percent: self._set_own(split_percent=percent),
            on_event=self._on_canary_event,
        )
        self._restore_episodes()

    def _restore_episodes(self) -> None:
        """Restore the episodes of the store; what its rollout has not counted counts first."""
        if len(self.slots) < 2:
            return
        stats, now_ns = self.table.stats, self._context.clock()
        stats.restore_episodes(self.canary.open_episodes(), now_ns)
        rows = self.writer.store.content.episodes
        stored = [(number, EpisodeEvent(*row)) for number, row in rows]
        if self.follower:
            # the router that leads has counted them, and lets them become unreported
            outcomes = (event for _, event in stored if event.what in OUTCOMES.values())
            stats.restore_episodes(outcomes, now_ns)
            return
        stats.restore_episodes((event for _, event in stored), now_ns)
        last = counted_until(self.decisions.canary_snapshot)
        uncounted = [event for number, event in stored if number > last]
        stats.replay(uncounted, max([last, *(number for number, _ in stored[-1:])]))

    def _share(self) -> SharedState | None:
        """Return what applies the decisions of other routers; None where there are none."""
        if self.follower is None:
            return None
        return SharedState(
            follower=self.follower,
            decisions=self.decisions,
            table=self.table,
            canary=self.canary,
            qualification=self.qualification,
            parameters=lambda: self.parameters,
            set_own=self._set_own,
            context=self._context,
        )

    def _make_table(self) -> RoutingTable:
        parameters = self.parameters
        known = self.writer.store.content.placements
        table = RoutingTable(
            parameters,
            placements=PlacementTable(parameters.max_remembered_placements, known, self.writer),
            verdicts=self.decisions.verdicts,
            store_event=lambda event: self.writer.record_episode(event[:3]),
        )
        table.stats.is_shared = self.follower is not None
        self.parameter_origins += self.decisions.restore(table.slots)
        return table

    def _make_feed(self) -> ShadowFeed | None:
        links = self.links.shadow
        if links is None:
            return None
        return ShadowFeed(
            ShadowComparator(self.qualification),
            links.shadow,
            SecondDraws(self.table.replicas, links.second_draws).client_for,
            self._publish_comparison,
            self.parameters,
            self._context,
        )

    @property
    def now_ns(self) -> int:
        """The time of the router's clock. Any thread."""
        return self._context.clock()

    @property
    def slots(self) -> dict[str, Slot]:
        return self.table.slots

    @property
    def replicas(self) -> dict[str, Replica]:
        """All replicas of all slots by name."""
        return self.table.replicas

    def change_parameters(self, parameters: RouterParameters) -> None:
        """Apply live parameters; running episodes stay in their slots."""
        before, self.parameters = self.parameters, parameters
        author = self.decisions.author
        if self.recorder:
            self.recorder.changed_parameters(before, parameters, author)
        self.decisions.leave_within_ns = parameters.leave_within_ns
        with self.table.lock:
            self.table.quotas.apply(parameters.quota_rules, parameters.quota_burst_s)
            self.table.stats.verdict_within_ns = parameters.verdict_within_ns
        self.decisions.record_parameters(before, parameters, self._given)
        self.decisions.when_written(self._apply_rules)
        self.canary.change_parameters(parameters, by=author)
        if self.feed:
            self.feed.rules = parameters

    def _apply_rules(self) -> None:
        """Let a new split take effect with its version in a shared state, which is known now."""
        with self.table.lock:
            self.table.change_rules(self.parameters)
            self.table.placements.split_version = self.writer.revision_of(SPLIT)

    def set_parameters(self, by: str, **values: Any) -> None:
        """Set live parameters by field for an operator. Raises ParameterError."""
        new = replace(self.parameters, **values)
        new.check()
        self.check_change(self.parameters, new)
        with self.decisions.authored(by):
            self._set_own(**values)

    def check_change(self, old: RouterParameters, new: RouterParameters) -> None:
        """Raise ParameterError for a split that is not possible now."""
        if new.split_percent == old.split_percent or len(self.slots) < 2:
            return
        self.canary.check_split(old.split_percent, new.split_percent)
        self.check_shares(old.split_percent, new.split_percent)

    def check_shares(self, old: int, new: int) -> None:
        """Raise ParameterError for another split with a share for a slot that may have none."""
        if new == old:
            return
        for name, share in (('a', new), ('b', 100 - new)):
            text = self.slots[name].text
            if share and text:
                raise ParameterError(
                    f'split_percent stays {old}: slot {name} would receive '
                    f'{share} % and is not eligible: {text}'
                )

    # replicas

    def update_replica(self, server: str, report: ServerStatus) -> str:
        """Record the report of a replica; return a text if the policy of its slot changes."""
        replica = self.replicas[server]
        slot = self.table.slot_of(replica)
        with self.table.lock:
            losses, before = replica.session_losses, slot.policy
            text = slot.record_report(server, report, self.now_ns)
            if replica.session_losses != losses:
                self.session_manager.on_sessions_lost(server)
            if slot.policy != before:
                self._on_other_policy(slot)
            return text

    def _record_swap(self, replica: Replica, policy: str) -> None:
        """Record that a replica replies with another policy than it reported. Under the lock."""
        slot = self.table.slot_of(replica)
        before = slot.policy
        text = slot.record_swap(replica.name, policy, self.now_ns)
        if slot.policy != before:
            self._on_other_policy(slot)
        if text:
            self.jobs.put(partial(self._context.log_warning, text))

    def _on_other_policy(self, slot: Slot) -> None:
        """Judge the policy of a slot by itself, not by its predecessor. Under the lock."""
        self.table.stats.restart_latency(slot.name)
        self._hold_candidate(slot)

    def _hold_candidate(self, slot: Slot) -> None:
        """
        Apply the requirements of a new candidate at once. Its record at the gate is read by the
        next poll, not here, where requests wait for the lock.
        """
        if slot.name != CANDIDATE:
            return
        if self._gate_records and not self._is_admitted(slot.policy):
            slot.unmet_requirements = GATE_UNREAD
        else:
            slot.unmet_requirements = self.qualification.unmet_requirements(
                slot.policy, *self._shadow_requirements
            )

    def set_available(self, server: str, *, is_available: bool, link_problem: str = '') -> None:
        """Record whether the services of a replica are available, and why the link has none."""
        with self.table.lock:
            self.replicas[server].set_available(is_available=is_available)
            self.replicas[server].link_problem = link_problem

    def has_all_replicas(self) -> bool:
        """
        Return whether every replica has sent a status that counts: one that arrives before the
        services counts no more once they were looked for and not there.
        """
        return all(each.has_status for each in self.replicas.values())

    def pin_policies(self) -> None:
        """Keep the policy of each slot as long as any replica serves it."""
        with self.table.lock:
            for slot in self.slots.values():
                slot.pin_policy()

    # requests, goals, sessions

    def on_request(self, raw: Raw) -> None:
        """Handle a request. Thread `intake`."""
        handle = self.dispatcher.on_request if self.is_open else self.dispatcher.refuse
        handle(raw, self.now_ns)

    def on_reply(self, server: str, raw: bytes) -> None:
        """Handle a reply of a replica. Thread `replies`."""
        self.dispatcher.on_reply(server, raw, self.now_ns)

    def place_goal(self, ids: RecordIds) -> tuple[Placement, Replica]:
        """Choose slot and replica of a goal. Raises NoSlotAvailable."""
        with self.table.lock:
            placement, replica = self.dispatcher.placement.place_goal(ids, self.now_ns)
        if not placement.sticky:
            if self.recorder:
                self.recorder.placed(ids, placement, replica.name, replica.policy)
            self._publisher.publish(ids, placement, replica.name, replica.policy)
        return placement, replica

    def close_session(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """
        Close a session at all replicas and the shadow and return it; None without such a session.
        Thread `control`.
        """
        session = self.session_manager.close(client_id, session_epoch)
        if session and self.feed:
            self.feed.on_session_closed(session.request)
        return session

    def _reopen_session(self, session: ClientSession, server: str) -> None:
        """Queue the reopening of a session that a replica has lost. Any thread."""
        self.jobs.put(partial(self.session_manager.reopen_session, session, server))

    # rollout

    def shares(self) -> dict[str, int]:
        """Return the effective share of new episodes [%] of each slot."""
        with self.table.lock:
            return self.table.shares(self.now_ns)

    def record_outcome(
        self, episode_id: str, outcome: int, *, of_client: str | None = None
    ) -> OutcomeReceipt:
        """
        Record an outcome, only for an episode `of_client` if given; return the reply, which holds
        when the store has what was queued (StoreWriter.when_durable).
        """
        with self.table.lock:
            if of_client is None:
                self._adopt_episode(episode_id)
            if of_client is None or self.table.stats.is_of(episode_id, of_client):
                receipt = self.table.stats.record_outcome(episode_id, outcome)
            else:
                receipt = OutcomeReceipt(
                    f'no episode {episode_id!r} of {of_client!r} was routed here since the router '
                    'started; report it with `lerobot-serve outcome` on its machine'
                )
            slot = self.table.slots.get(self.table.stats.initial_slot(episode_id))
        if not receipt.is_accepted:
            self.drops.add('outcome_unknown')
        elif self.recorder and slot and receipt.is_new:
            self.recorder.outcome(episode_id, outcome, slot.name, slot.policy)
        return receipt

    def _adopt_episode(self, episode_id: str) -> None:
        """
        Accept the outcome of an episode that a previous run, or another router, has served. Under
        the lock.
        """
        placement = self.table.placements.find(episode_id)
        if placement and placement.slot in self.slots:
            self.table.stats.adopt_episode(episode_id, placement, self.now_ns)

    @property
    def storage_problem(self) -> str:
        """What is wrong with the store of decisions; empty when all is well."""
        durable = self.writer.text and f'decisions are not durable: {self.writer.text}'
        shared = self.shared.text if self.shared else ''
        return '; '.join(filter(None, (durable, shared)))

    def expire_episodes(self) -> None:
        """Mark episodes with an overdue outcome as unreported. Once per second."""
        with self.table.lock:
            self.table.stats.expire(self.now_ns)

    def update_canary(self) -> bool:
        """Update the canary; return whether it produced an event."""
        if len(self.slots) < 2:
            if self.shared:
                self.shared.show({})
            return False
        candidate = self.slots[CANDIDATE]
        policy = candidate.policy
        unmet = self.unmet_requirements(policy)
        waived = self.qualification.waived_requirements(policy, *self._shadow_requirements)
        with self.table.lock:
            # a swap meanwhile holds the next policy, and the next poll judges it
            if candidate.policy == policy:
                candidate.unmet_requirements = unmet
                candidate.waived_requirements = waived
            facts = self._facts()
        if self.shared:
            return self.shared.update_canary(self.now_ns, facts)
        return self.canary.update(self.now_ns, facts)

    def _facts(self) -> Facts:
        """Return the facts of both slots for the canary. Under the lock."""
        in_shadow = self.qualification.of_all_routers(self.slots[CANDIDATE].policy)
        if not self.shared:
            self.canary.counted = {COUNTED_UNTIL: self.table.stats.event_number}
        return self.canary.facts(self.table, in_shadow)

    def unmet_requirements(self, policy: str) -> str:
        """Return what a policy lacks before it may drive: shadow and gate; empty for nothing."""
        shadow = self.qualification.unmet_requirements(policy, *self._shadow_requirements)
        return '; '.join(filter(None, (shadow, self._gate_obstacle(policy))))

    def _gate_obstacle(self, policy: str) -> str:
        """
        Return why a policy may not begin to drive. One that drives by its record does not stop
        because a file is gone, and is not rolled back for that.
        """
        if self._gate_records is None:
            return ''
        if self._is_admitted(policy):
            self._record_admission(policy, ADMITTED_BEFORE)
            return ''
        obstacle = self._gate_records.obstacle(policy, self.slots[CHAMPION].policy)
        if policy and not obstacle:
            found = self._gate_records.record_of(policy)
            self._record_admission(policy, found.verdict if found else SAME_FILES, found)
        return obstacle

    def _record_admission(self, policy: str, result: str, found: GateRecord | None = None) -> None:
        """Record once, in the trace, by which result of its gate a policy may drive."""
        if self.recorder and digest_of(policy) not in self._admissions:
            self._admissions.add(digest_of(policy))
            self.recorder.admitted(policy, result, found)

    def _is_admitted(self, policy: str) -> bool:
        """
        Return whether a policy drives by this rollout, also after a restart of the router. A
        verdict on an earlier rollout admits nothing: the champion is another one since.
        """
        canary = self.canary.canary
        drives = canary.state in (*ON_TRIAL, CanaryPhase.PROMOTED)
        return drives and weights_of(canary.record.policies['candidate']) == weights_of(policy)

    @property
    def _shadow_requirements(self) -> tuple[float, int]:
        """Hours and episodes in shadow."""
        return self.parameters.shadow_minimum_hours, self.parameters.shadow_minimum_episodes

    def hand_over_episodes(self) -> None:
        """Store what this router has counted. At its end; a shared state has it already."""
        if len(self.slots) < 2 or self.shared:
            return
        with self.table.lock:
            facts = self._facts()
        self.canary.count(self.now_ns, facts)

    def _on_canary_event(self, event: CanaryEvent, share_percent: int | None) -> None:
        if self.recorder:
            self.recorder.canary(event, share_percent)

    def _publish_comparison(self, found: ShadowComparison, action_names: tuple[str, ...]) -> None:
        """Publish and record a comparison. Thread `shadow`."""
        self.links.publish(shadow_divergence(found, action_names, self._context.stamp()))
        if self.recorder:
            self.recorder.shadow(found, action_names)

    def close(self) -> None:
        """Wait for running calls, and close the store."""
        self._call_pool.close()
        self.writer.close()
