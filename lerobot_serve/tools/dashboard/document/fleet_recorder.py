# SPDX-License-Identifier: Apache-2.0
"""
Turn states of robots, routers, servers and learners into the document, with what happened between
them.

The poll thread calls it; other threads read the newest states for commands, which are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from operator import attrgetter

from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.records import ServerStatus, ShadowSummary
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.dashboard.command_runner import Loading
from lerobot_serve.tools.dashboard.document.fleet_document import (
    bounded,
    FleetDocument,
    Json,
    Turn,
)
from lerobot_serve.tools.dashboard.document.history import Decisions, Episodes, Evidence
from lerobot_serve.tools.dashboard.document.incidents import (
    IncidentFinding,
    Incidents,
    instant,
    Moment,
    robot_findings,
    rollout_finding,
    silence_finding,
    state_finding,
    time_of_day,
)
from lerobot_serve.tools.dashboard.document.rows import (
    learner_row,
    robot_row,
    router_row,
    server_row,
    silent_row,
    with_old_numbers,
)
from lerobot_serve.tools.dashboard.evidence import IncidentPlace
from lerobot_serve.tools.dashboard.planned_commands import checked_target
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView, silent, UNHEARD
from lerobot_serve.tools.operate.learners import LearnerView
from lerobot_serve.tools.operate.robots import FIELDS, MEASURED

NOISY_PERIOD_S, SETTLED_S = 1.0, 3.0
# of a robot, without the numbers that are new with every message
lasting = attrgetter(*(name for name in FIELDS if name not in MEASURED))
ROBOT, ROUTER, SERVER, LEARNER = 'robots', 'routers', 'servers', 'learners'
WORDS = {
    ROBOT: 'the robot',
    ROUTER: 'the router',
    SERVER: 'the server',
    LEARNER: 'the learner',
}


@dataclass(slots=True)
class _Robot:
    view: RobotView | None = None
    row: Json = field(default_factory=dict)
    age_limit_s: float | None = None
    # when the noisy numbers of the row were taken
    numbers_s: float = float('-inf')
    # when its episode was heard of first
    episode_s: float = float('-inf')


@dataclass(slots=True)
class _Router:
    view: RouterView | None = None
    plan: CanaryPlan | None = None
    # what the page loads, or loaded last
    loading: Json = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    evidence: Evidence = field(default_factory=Evidence)


class FleetRecorder:
    """See the module."""

    def __init__(
        self,
        document: FleetDocument,
        time_of_day: Callable[[], str] = time_of_day,
        instant: Callable[[], str] = instant,
    ) -> None:
        self._document, self._time_of_day, self._instant = document, time_of_day, instant
        self._incidents, self._episodes = Incidents(), Episodes()
        self._robots: dict[str, _Robot] = {}
        self._routers: dict[str, _Router] = {}
        self._silent: set[tuple[str, str]] = set()
        # episode -> router
        self._placed: dict[str, str] = {}

    # what is heard; each is a message of a source

    def on_robot(self, new: RobotView, age_limit_s: float | None, now_s: float) -> None:
        robot = self._robots.setdefault(new.node, _Robot())
        old = robot.view
        self._heard(ROBOT, new.node, now_s)
        is_due = now_s - robot.numbers_s >= NOISY_PERIOD_S
        is_same = old is not None and lasting(old.edge) == lasting(new.edge)
        if is_same and not is_due and age_limit_s == robot.age_limit_s:
            # most states of a robot differ in their numbers alone
            return
        robot.view, robot.age_limit_s = new, age_limit_s
        row = robot_row(new, age_limit_s)
        robot.row = row if is_due else with_old_numbers(row, robot.row)
        robot.numbers_s = now_s if is_due else robot.numbers_s
        self._document.put(ROBOT, new.node, robot.row)
        if old is not None and not is_same:
            is_settled = now_s - robot.episode_s > SETTLED_S
            findings = robot_findings(old.edge, new.edge, is_settled=is_settled)
            self._note(new.name, findings, now_s, new.edge.client_id)
        if old is None or old.edge.episode_id != new.edge.episode_id:
            robot.episode_s = now_s
            self._on_episode(old, new)

    def _on_episode(self, old: RobotView | None, new: RobotView) -> None:
        self._episodes.on_robot(old, new, self._time_of_day())
        self._document.replace_section('episodes', self._episodes.rows)
        if new.edge.episode_id and new.edge.server:
            self._placed[new.edge.episode_id] = node_name(new.edge.server)
        if len(self._placed) > 2 * len(self._episodes.rows) + 10:
            self._placed = {k: v for k, v in self._placed.items() if k in self._episodes.rows}

    def on_router(
        self,
        view: RouterView,
        settings: RouterParameters,
        shadow: ShadowSummary | None,
        now_s: float,
    ) -> None:
        router = self._routers.setdefault(view.name, _Router())
        old = router.view
        router.view, router.plan = view, settings.plan
        if old is not None:
            router.decisions.add(old, view, self._time_of_day())
            self._note(view.name, _router_findings(old, view), now_s)
        router.evidence.add(view, settings, int(now_s * 1000))
        self._heard(ROUTER, view.name, now_s)
        row = router_row(view, settings, shadow, router.decisions.rows)
        self._document.put(ROUTER, view.name, row | router.loading)

    def on_loading(self, node: str, loading: Loading) -> None:
        """Note a step of a rollout that the page begins or ends."""
        row = self._document.row(ROUTER, node)
        if row is None:
            return
        found = asdict(loading) | {'text': bounded(loading.text)}
        self._routers[node].loading = {'loading': found}
        self._document.put(ROUTER, node, row | self._routers[node].loading)

    def on_server(self, node: str, status: ServerStatus, now_s: float) -> None:
        row = server_row(status)
        old = self._document.row(SERVER, node)
        if old is not None:
            states = old['state'], row['state']
            finding = state_finding('server', 'server', *states, row['text'])
            self._note(node, [finding] if finding else [], now_s)
        self._heard(SERVER, node, now_s)
        self._document.put(SERVER, node, row)

    def on_learner(self, learner: LearnerView, now_s: float) -> None:
        self._heard(LEARNER, learner.node, now_s)
        self._document.put(LEARNER, learner.node, learner_row(learner))

    def on_outcome(self, episode_id: str, outcome: str) -> None:
        """Note the outcome of an episode, reported here or elsewhere."""
        self._episodes.on_outcome(episode_id, outcome)
        self._document.replace_section('episodes', self._episodes.rows)

    # silence

    def _heard(self, kind: str, node: str, now_s: float) -> None:
        if (kind, node) in self._silent:
            self._silent.discard((kind, node))
            if kind == ROBOT:
                # without the mark
                self._document.put(ROBOT, node, self._robots[node].row)
            finding = silence_finding(WORDS[kind], is_silent=False, has_publisher=True)
            self._note(self._who(kind, node), [finding], now_s, self._client(kind, node))

    def on_silent(
        self, kind: str, node: str, *, last_s: float, has_publisher: bool, now_s: float
    ) -> None:
        """Mark a source that is not heard of any more; its values stay as the last ones."""
        row = self._document.row(kind, node)
        if row is None or (kind, node) in self._silent:
            return
        self._silent.add((kind, node))
        since_ms = int(last_s * 1000)
        marked = (
            silent_row(row, since_ms) if kind == ROBOT else {**row, 'silent_since_ms': since_ms}
        )
        self._document.put(kind, node, marked)
        finding = silence_finding(WORDS[kind], is_silent=True, has_publisher=has_publisher)
        self._note(self._who(kind, node), [finding], now_s, self._client(kind, node))

    def forget(self, kind: str, node: str) -> None:
        """Remove a source that has been gone for long."""
        self._document.remove(kind, node)
        self._silent.discard((kind, node))
        self._robots.pop(node, None) if kind == ROBOT else self._routers.pop(node, None)

    def _who(self, kind: str, node: str) -> str:
        return RobotView(node).name if kind == ROBOT else node

    def _client(self, kind: str, node: str) -> str:
        """Return the name of a robot in traces, empty for a router or server."""
        view = self._robots.get(node, _Robot()).view if kind == ROBOT else None
        return view.edge.client_id if view else ''

    def _note(
        self, who: str, findings: Iterable[IncidentFinding], now_s: float, client: str = ''
    ) -> None:
        for finding in findings:
            moment = Moment(int(now_s * 1000), self._time_of_day(), self._instant())
            self._incidents.add(who, finding, moment, client)
        self._document.replace_section('incidents', self._incidents.rows)

    def turn(self, now_s: float, viewers: int) -> Turn | None:
        """Return the next state of the document, if there is one."""
        return self._document.turn(int(now_s * 1000), viewers)

    # for commands and requests; any thread

    def router(self, node: str) -> RouterView:
        """Return the newest state of a router that is heard of. Raises UserError."""
        view = checked_target(self._routers.get(node, _Router()).view, node, 'router')
        if (ROUTER, node) in self._silent:
            raise UserError(
                f'{node} is silent: it ended, hangs, or is not reached; what it would do is not '
                'known. Nothing was changed'
            )
        return view

    def plan(self, router: str) -> CanaryPlan | None:
        """Return the plan of a router as far as it is known."""
        return self._routers.get(router, _Router()).plan

    def robot(self, node: str) -> RobotView:
        """Return the newest state of a robot, SILENT if it is not heard of. Raises UserError."""
        view = checked_target(self._robots.get(node, _Robot()).view, node, 'robot')
        return silent(view, UNHEARD) if (ROBOT, node) in self._silent else view

    def robots(self) -> list[RobotView]:
        """Return the newest state of each robot, SILENT if it is not heard of."""
        return [self.robot(node) for node, robot in list(self._robots.items()) if robot.view]

    def router_of_episode(self, episode_id: str) -> str:
        """Return the router that placed an episode. Raises UserError."""
        return self.router(
            checked_target(self._placed.get(episode_id), episode_id, 'episode')
        ).name

    def evidence(self, node: str) -> Evidence | None:
        """Return the evidence of a router; None for a name that is not there."""
        found = self._routers.get(node)
        return found.evidence if found else None

    def incident_place(self, number: str) -> IncidentPlace | None:
        """Return where an incident is in traces; None for one that is not there."""
        return self._incidents.place(number)


def _router_findings(old: RouterView, new: RouterView) -> list[IncidentFinding]:
    found = [rollout_finding(old.canary.state, new.canary.state, new.canary.text)]
    for slot in new.state.slots:
        before = old.slot(slot.slot)
        if before is None:
            continue
        states = before.state.name, slot.state.name
        found.append(state_finding('slot', f'slot {slot.slot}', *states, slot.text))
        known = {replica.server: replica.state for replica in before.replicas}
        for each in slot.replicas:
            states = known.get(each.server, each.state).name, each.state.name
            found.append(state_finding('server', f'replica {each.server}', *states, each.text))
    return [finding for finding in found if finding]
