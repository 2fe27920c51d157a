# SPDX-License-Identifier: Apache-2.0
"""A fleet that loads policies as a client of an operator sees it: at once, and as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lerobot_serve.contract.records import ServerStatus, SlotState
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.outcome import NotReached
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader
from support.tools.operator_states import canary_of, changed, server_of

AFTER = {'activate': 'active', 'cleanup': 'unconfigured'}


@dataclass
class LoadingFleet:
    """
    A router that shows at once what its servers serve. `replies` are those of commands and of
    transitions (server, transition), an exception is raised; `parameters` are those of nodes, each
    value of another one is `root`; `then` is the next state of a robot.
    """

    view: RouterView
    loads: str = ''
    root: str = '/models'
    missing: str = ''
    replies: dict[Any, Any] = field(default_factory=dict)
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    robots: Sequence[RobotView] = ()
    then: RobotView | None = None
    on_loaded: Callable[[str], None] = lambda _: None
    operator: str = 'kim@lab'
    state: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    given: dict[str, object] = field(default_factory=dict)

    @property
    def loader(self) -> ServerLoader:
        return ServerLoader(self, 1.0, self.lines.append)

    def find_routers(self, wanted: str = '') -> list[str]:
        return [self.view.name]

    def known_routers(self) -> dict[str, float]:
        return {}

    def router(self, name: str) -> RouterView:
        return self.view

    last_router = router

    def wait_for_router(self, name: str, accepts: Any, timeout_s: float | None = None) -> Any:
        return self.view if accepts(self.view) else None

    def find_robots(self, **_: object) -> Sequence[RobotView]:
        return self.robots

    def wait_for_robot(self, node: str, accepts: Any) -> RobotView | None:
        return self.then if self.then and accepts(self.then) else None

    def get_parameters(self, node: str, names: Sequence[str]) -> dict[str, str]:
        if node == self.missing:
            raise NotReached('not there')
        return self.parameters.get(node) or dict.fromkeys(names, self.root)

    def lifecycle_state(self, server: str) -> str:
        return self.state.get(server, 'active')

    def set_parameters(self, server: str, values: dict[str, object]) -> str:
        self.calls.append((server, 'set'))
        self.given = values
        return ''

    def server(self, server: str) -> ServerStatus:
        return server_of(server, 'ACTIVE', policy=self.loads, text='the files are damaged')

    def change_state(self, server: str, transition: str, timeout_s: float) -> bool:
        self.calls.append((server, transition))
        if not self._reply((server, transition), True):
            return False
        self.state[server] = AFTER.get(transition, 'inactive')
        self._show(server, is_loaded=transition == 'activate')
        if transition == 'activate':
            self.on_loaded(server)
        return True

    def _show(self, server: str, *, is_loaded: bool) -> None:
        new = {'state': 'READY', 'policy': self.loads} if is_loaded else {'state': 'UNAVAILABLE'}

        def shown(slot: SlotState) -> SlotState:
            replicas = tuple(changed(r, **new) if r.server == server else r for r in slot.replicas)
            is_whole = all(r.policy == self.loads for r in replicas)
            policy = self.loads if is_whole else slot.policy
            return changed(slot, policy=policy, replicas=replicas)

        self.view = changed(self.view, slots=tuple(map(shown, self.view.state.slots)))

    def control_slot(self, name: str, command: str, *, reason: str, **values: Any) -> Any:
        self.commands.append((command, reason))
        if reply := self._reply(command, None):
            return reply
        if command == 'CANARY_START':
            planned = self.view.slot('b').policy
            canary = canary_of(CanaryPhase.RUNNING, step_count=2, planned_policy=planned)
            self.view = changed(self.view, canary=canary, split_percent=50)
        elif command in ('CANARY_STOP', 'CANARY_FINISH'):
            split = values['split_percent']
            self.view = changed(self.view, canary=canary_of(), split_percent=split)
        return True, 'done'

    def _reply(self, key: Any, usual: Any) -> Any:
        reply = self.replies.get(key, usual)
        if isinstance(reply, Exception):
            raise reply
        return reply
