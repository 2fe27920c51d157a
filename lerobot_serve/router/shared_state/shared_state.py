# SPDX-License-Identifier: Apache-2.0
"""
Apply what other routers of the site decide, and run the rollout at one of them. Executor thread.

Each router shows the others what it sees of the slots and writes the begins and ends of its
episodes; the one that leads counts them all and runs the rollout. An operator may send a command
to any: whoever decides second, from an older state, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TYPE_CHECKING

from lerobot_serve import __version__
from lerobot_serve.contract.names import client_of_episode
from lerobot_serve.parameters import ParameterError, with_changes
from lerobot_serve.router.canary.controller import CanaryController
from lerobot_serve.router.canary.facts import EpisodeEvent, Facts, SlotFacts
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.shadow.qualification import Qualification
from lerobot_serve.router.shared_state.fleet_facts import (
    counters_from_json,
    fleet_facts,
    FleetCounters,
    report_of,
    reported,
)
from lerobot_serve.router.storage.decisions import DurableDecisions, live_changes, live_specs
from lerobot_serve.router.storage.records import (
    COUNTED,
    COUNTED_UNTIL,
    counted_until,
    DecisionKey,
    EpisodeRow,
    fail_closed,
    PARAMETER,
    readable_content,
    ROLLOUT,
    SPLIT,
    StoreDamage,
    VERDICT,
)
from lerobot_serve.router.storage.rows import DecisionRow, is_news, Member

if TYPE_CHECKING:
    # a router with a file needs no psycopg
    from lerobot_serve.router.storage.follower import Changes, StateFollower

# of a report: the servers of each slot
SERVERS = 'servers'
PLACEMENTS_AT_ONCE = 200
# of a stored rollout: what is in its counts
COUNTERS = 'counters'


@dataclass(eq=False)
class SharedState:
    """
    See the module. The fields are what changes of other routers apply to; `set_own` sets
    parameters by field, `parameters` returns those in force.
    """

    follower: StateFollower
    decisions: DurableDecisions
    table: RoutingTable
    canary: CanaryController
    qualification: Qualification
    parameters: Callable[[], RouterParameters]
    set_own: Callable[..., None]
    context: NodeContext

    def __post_init__(self) -> None:
        self._store = self.follower.store
        self._members: list[Member] = []
        self._episodes: list[tuple[int, EpisodeRow]] = []
        self._counters = FleetCounters()
        self._leads = False
        self._damage_text = self._warned = ''
        self.decisions.writer.on_conflict = self.follower.read_all
        self._update_split_version()

    @property
    def leads(self) -> bool:
        """Whether this router runs the rollout now."""
        can_write = not self.decisions.writer.text
        return self._leads and can_write and not self.is_away

    @property
    def is_away(self) -> bool:
        """Whether the state has not been heard of for some time. Any thread."""
        return self.follower.is_away

    @property
    def routers(self) -> int:
        """How many routers serve the site, with this one."""
        return 1 + len(self._others())

    @property
    def text(self) -> str:
        """What an operator must know of the shared state; empty when all is well."""
        if self.is_away:
            return 'the shared state cannot be reached: no rollout advances until it is back'
        return '; '.join(filter(None, (self._damage_text, *map(self._stranger, self._others()))))

    def _others(self) -> list[Member]:
        return [member for member in self._members if member.router != self._store.router]

    # changes of others

    def poll(self, now_ns: int) -> None:
        """Apply what was found since the last call."""
        for changes in self.follower.take():
            self._apply(changes, now_ns)

    def _apply(self, changes: Changes, now_ns: int) -> None:
        self._apply_damage(changes.damage)
        rows = [row for row in changes.decisions if self._is_news(row, whole=changes.is_whole)]
        if changes.is_whole:
            rows += self._missing_rows(
                {row.key for row in changes.decisions} | set(changes.damage.keys)
            )
        self._apply_decisions(rows)
        for begin in range(0, len(changes.placements), PLACEMENTS_AT_ONCE):
            # requests wait for the lock
            with self.table.lock:
                for episode_id, placed in changes.placements[begin : begin + PLACEMENTS_AT_ONCE]:
                    self.table.placements.adopt(episode_id, placed)
        for policy, router, record in changes.shadow:
            self.qualification.adopt(policy, router, record)
        if changes.members is not None:
            self._meet(changes.members)
        if changes.leads != self._leads:
            self._change_lead(changes.leads, now_ns)
        if changes.episodes_after <= self._last_episode:
            known = self._last_episode
            self._episodes += [row for row in changes.episodes if row[0] > known]

    @property
    def _last_episode(self) -> int:
        """The last event that was counted or waits to be."""
        return self._episodes[-1][0] if self._episodes else self._counted_until

    @property
    def _counted_until(self) -> int:
        """The last event that is in the counts of the rollout."""
        return counted_until({COUNTED: self.canary.counted})

    def _is_news(self, row: DecisionRow, *, whole: bool) -> bool:
        writer, own = self.decisions.writer, self._store.written.get(row.key, 0)
        is_unwritten = writer.has_unwritten(row.key)
        if row.key == ROLLOUT and row.revision >= own and not is_unwritten:
            # what this router decides next builds on it
            writer.learned[row.key] = max(writer.learned.get(row.key, 0), row.revision)
        is_known = writer.decisions.get(row.key) == row.value
        return is_news(
            row.revision, own, is_unwritten=is_unwritten, is_whole=whole, is_known=is_known
        )

    def _missing_rows(self, known: set[DecisionKey]) -> list[DecisionRow]:
        """Return, as taken back, what is in memory and was never written."""
        writer = self.decisions.writer
        return [
            DecisionRow(key, None, 0, '')
            for key in writer.decisions
            if key not in known
            and key[0] == VERDICT
            and writer.decisions[key]['verdict'] != PolicyVerdict.DAMAGED.value
            and key not in self._store.written
            and not writer.has_unwritten(key)
        ]

    def _apply_decisions(self, rows: list[DecisionRow]) -> None:
        """Apply decisions, first the parameters: a rollout belongs to its plan."""
        writer = self.decisions.writer
        for row in rows:
            writer.learn(row.key, row.value, row.revision)
        self._apply_parameters([row for row in rows if row.key[0] == PARAMETER])
        for row in rows:
            self.decisions.adopt(row.key, row.value, self.table.slots)
            if row.key == ROLLOUT:
                self._adopt_rollout()
        self._update_split_version()

    def _adopt_rollout(self) -> None:
        """Go on from where the stored rollout has counted."""
        canary = self.canary
        canary.adopt()
        self._episodes.clear()
        self._counters = counters_from_json(canary.counted.get(COUNTERS))
        # the first growth is that since it was stored
        canary.canary.record.growth.skip(Facts(SlotFacts(), SlotFacts()))

    def _apply_parameters(self, rows: list[DecisionRow]) -> None:
        names = {spec.name for spec in live_specs()}
        for row in rows:
            if row.value is None or row.key[1] not in names:
                continue
            by, value = row.value['by'].removeprefix('by '), row.value['value']
            with self.decisions.authored(by):
                self._set(row.key[1], value, by)
        # the router that an operator asked has stored what they mean for the rollout
        if rows:
            self.canary.drop_pending()

    def _set(self, name: str, value: Any, by: str) -> None:
        current = self.parameters()
        try:
            changed = live_changes(current, with_changes(current, {name: value}))
            if changed:
                self.set_own(**changed)
        except ParameterError as error:
            self.context.log_warning(
                f'{name} = {value!r}, set by {by} at another router, is not possible here: {error}'
            )

    def _update_split_version(self) -> None:
        """Let placements name a version that is known later: the state was away, for example."""
        table = self.table
        with table.lock:
            table.placements.split_version = self.decisions.writer.revision_of(SPLIT)

    def _apply_damage(self, damage: StoreDamage) -> None:
        """Bar what an unreadable decision may have barred."""
        if not damage or damage.text == self._damage_text:
            return
        self._damage_text = damage.text
        self.context.log_warning(f'shared state damaged: {damage.text}')
        content = readable_content(damage)
        fail_closed(content, damage, self.context.local_time())
        for key, value in content.decisions.items():
            if key[0] == VERDICT or key in damage.keys:
                self.decisions.adopt(key, value, self.table.slots)

    # members

    def _meet(self, members: list[Member]) -> None:
        before, self._members = {m.router: m.name for m in self._members}, members
        now = {member.router: member.name for member in members}
        log = self.context.log_info
        for run, name in now.items():
            if run not in before and run != self._store.router:
                log(f'{name} serves this site, too')
        for run, name in before.items():
            if run not in now and run != self._store.router:
                log(f'{name} has left this site, or cannot be reached')
        text = '; '.join(filter(None, map(self._stranger, self._others())))
        if text and text != self._warned:
            self.context.log_warning(text)
        self._warned = text

    def _stranger(self, member: Member) -> str:
        """Return why a router seems to be of another site, or cannot be understood."""
        if member.name == self.context.name:
            return (
                f'two routers of this site are named {member.name}: give each a name of its own, '
                'or two sites two values of state_site'
            )
        servers = member.report.get(SERVERS)
        if not isinstance(servers, dict):
            # before its first report
            return ''
        own = _servers(self.table)
        for slot, names in own.items():
            others = [name for name in _as_list(servers.get(slot)) if isinstance(name, str)]
            if others and not set(others) & set(names):
                return (
                    f'{member.name} has other servers in slot {slot} ({", ".join(others)}) than '
                    f'this router ({", ".join(names)}): if it is of another site, set another '
                    'state_site'
                )
        return ''

    def _change_lead(self, leads: bool, now_ns: int) -> None:
        self._leads = leads
        self._episodes.clear()
        if not leads:
            self.context.log_info('this router no longer runs the rollout of the site')
            return
        self.context.log_info('this router runs the rollout of the site')
        self._adopt_rollout()
        with self.table.lock:
            # so that they become unreported in time, should their router be gone
            self.table.stats.restore_episodes(self.canary.open_episodes(), now_ns)

    # rollout

    def show(self, report: dict[str, Any]) -> None:
        """Show the other routers what this one sees."""
        if self.decisions.writer.text:
            # what it would decide reached nobody: another one leads
            self.follower.rest()
            return
        shown = {**report, SERVERS: _servers(self.table), 'version': __version__}
        self.follower.put(shown, self._last_episode)

    def update_canary(self, now_ns: int, own: Facts) -> bool:
        """Run the rollout where this router leads; return whether it produced an event."""
        self.show(report_of(own))
        self._update_split_version()
        if not self.leads:
            return self.canary.follow(now_ns, own)
        others, problems = self._views()
        counted, self._episodes = self._episodes, []
        facts = fleet_facts(
            own,
            others,
            self._counters,
            self._store.router,
            tuple(
                EpisodeEvent(name, what, arm, client_of_episode(name))
                for _, (name, what, arm) in counted
            ),
            problems,
        )
        runs = {self._store.router, *(member.router for member, _ in others)}
        self.canary.counted = {
            COUNTED_UNTIL: counted[-1][0] if counted else self._counted_until,
            COUNTERS: self._counters.as_json(runs),
        }
        return self.canary.update(now_ns, facts)

    def _views(self) -> tuple[list[tuple[Member, Mapping[str, SlotFacts]]], list[str]]:
        """Return what the other routers see, and why that of one is not known."""
        views: list[tuple[Member, Mapping[str, SlotFacts]]] = []
        problems = []
        for member in self._others():
            if stranger := self._stranger(member):
                problems.append(stranger)
            if not member.report:
                # it routes nothing yet, or no more
                continue
            try:
                views.append((member, reported(member.report)))
            except ValueError as error:
                problems.append(f'the report of {member.name} cannot be read: {error!r}')
        return views, problems


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _servers(table: RoutingTable) -> dict[str, list[str]]:
    return {name: list(slot.replicas) for name, slot in table.slots.items()}
