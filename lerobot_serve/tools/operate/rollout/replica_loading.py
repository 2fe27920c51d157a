# SPDX-License-Identifier: Apache-2.0
"""
Load another policy into the servers of a slot, one by one, while the other slot serves.

The caller's thread. Each step is confirmed before the next one; a load that is interrupted names
what is done and what is left, and continues there when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.records import ReplicaState, SlotState
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.fleet_state import CHAMPION_SLOT, RobotView, RouterView
from lerobot_serve.tools.operate.outcome import NotReached, PartlyDone, ResultUnknown

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

T = TypeVar('T')
# lifecycle state -> transitions until the parameters may change
UNLOADING: dict[str, tuple[str, ...]] = {
    'active': ('deactivate', 'cleanup'),
    'inactive': ('cleanup',),
    'unconfigured': (),
}
LOADING = ('configure', 'activate')
# what names the policy of a server
POLICY_PATH, POLICY_ROOT = 'policy_path', 'policy_root'
POLICY_PARAMETERS = ('policy_kind', POLICY_PATH, 'policy_name')
# a replica that serves its new policy while the others of its slot serve the old one
LOADED_STATES = (ReplicaState.State.READY, ReplicaState.State.POLICY_MISMATCH)
# in the error of one step
UNCHANGED = '. Nothing was changed'


@dataclass(slots=True)
class LoadProgress:
    """
    What each server of a slot serves now, in words, in the order in which they are loaded, and
    what else was changed. `has_changed`: a server was unloaded, or something else was changed.
    """

    serves: dict[str, str] = field(default_factory=dict)
    has_changed: bool = False

    @property
    def text(self) -> str:
        """What each server serves, and what to type."""
        if not self.has_changed:
            return 'Nothing was changed'
        listed = '; '.join(f'{server} {what}' for server, what in self.serves.items())
        return (
            f'Now {listed}. Type the same command again to continue; a server that is restarted '
            'serves the policy of its start'
        )

    def note_change(self, node: str, what: str) -> None:
        """Note what a node does now, in words."""
        self.has_changed = True
        self.serves[node] = what

    def run(self, step: Callable[[], T]) -> T:
        """
        Run a step. Raises PartlyDone, with what each server serves, for an error after something
        was changed.
        """
        try:
            return step()
        except ResultUnknown as error:
            raise ResultUnknown(f'{error}. {self.text}' if self.has_changed else error) from error
        except UserError as error:
            kind = PartlyDone if self.has_changed else UserError
            # a step that is refused changed nothing, and the steps before it may have
            text = str(error).replace(UNCHANGED, '')
            raise kind(f'{text}. {self.text}') from error


@dataclass(frozen=True, slots=True)
class ServerLoader:
    """Changes the policy of single servers; one thread. `report` receives a line for each step."""

    client: FleetClient
    timeout_s: float
    report: Callable[[str], None]
    progress: LoadProgress = field(default_factory=LoadProgress)

    def check(self, server: str, path: str) -> None:
        """Raise UserError for a server that may not load a path, NotReached without a server."""
        found = self.client.get_parameters(server, [POLICY_ROOT])
        check_root(server, found.get(POLICY_ROOT) or '', path)

    def load(self, server: str, values: Mapping[str, object]) -> str:
        """Load a policy; return its fingerprint. Raises UserError, ResultUnknown."""
        self.unload(server)
        if refusal := self.client.set_parameters(server, values):
            raise UserError(f'{server} refuses the policy: {refusal}')
        self.report(f'{server}: load {values[POLICY_PATH]}')
        self._change(server, LOADING)
        found = self.client.server(server).policy
        self.progress.serves[server] = f'serves {found}'
        return found

    def unload(self, server: str) -> None:
        """Unload the policy of a server. Raises UserError, ResultUnknown."""
        state = self.client.lifecycle_state(server)
        if state not in UNLOADING:
            raise UserError(f'{server} is {state}; wait until it is active')
        self.report(f'{server}: unload (it is {state})')
        self._change(server, UNLOADING[state])
        self.progress.serves[server] = 'is unloaded and serves nothing'

    def _change(self, server: str, transitions: Sequence[str]) -> None:
        for transition in transitions:
            self.progress.note_change(server, f'is in the transition {transition}, or after it')
            if not self.client.change_state(server, transition, self.timeout_s):
                text = self.client.server(server).text
                self.progress.serves[server] = f'serves nothing: it could not {transition}'
                raise UserError(f'{server} could not {transition}: {text}')


@dataclass(slots=True)
class SlotLoader:
    """
    Loads one policy into the servers of a slot by `loader`; one thread.

    values      the parameters that name the policy
    fingerprint expected of each server; empty: that of the first one
    check_may_go_on  called before each server; raises UserError when the reason has gone
    """

    loader: ServerLoader
    router: str
    slot: str
    values: Mapping[str, object]
    fingerprint: str = ''
    check_may_go_on: Callable[[], None] = lambda: None

    def run(self, now: RouterView) -> RouterView:
        """Load the policy; return the state in which the slot serves it. Raises UserError."""
        slot, progress = now.slot(self.slot), self.loader.progress
        assert slot
        for replica in slot.replicas:
            progress.serves[replica.server] = f'serves {replica.policy or "no policy"}'
        return progress.run(lambda: self._load_all(slot))

    def _load_all(self, slot: SlotState) -> RouterView:
        self.check(slot)
        before = self.fingerprint
        for server in [r.server for r in slot.replicas if not is_loaded(r, before)]:
            self.check_may_go_on()
            self._check_fingerprint(server, self.loader.load(server, self.values))
        return self._wait_for_slot()

    def check(self, slot: SlotState) -> None:
        """Raise UserError for a server that is missing or may not change its policy."""
        for replica in slot.replicas:
            try:
                self.loader.check(replica.server, str(self.values[POLICY_PATH]))
            except NotReached as error:
                raise UserError(
                    f'{replica.server} of slot {slot.slot} does not run: {replica.text or error}. '
                    'Start it first. Nothing was changed'
                ) from error

    def _check_fingerprint(self, server: str, found: str) -> None:
        """Wait until the router sees the new policy. Raises UserError."""
        self.fingerprint = self.fingerprint or found
        if found != self.fingerprint:
            raise UserError(
                f'{server} loaded {found}, expected {self.fingerprint}: the files in '
                f'{self.values[POLICY_PATH]} differ between the machines'
            )
        seen = self.loader.client.wait_for_router(
            self.router, lambda now: self._is_seen(now, server), self.loader.timeout_s
        )
        if seen is None:
            raise UserError(f'{server} serves {found}, and {self.router} does not report it ready')
        self.loader.report(f'{server}: serves {found}')

    def _is_seen(self, now: RouterView, server: str) -> bool:
        slot = now.slot(self.slot)
        replicas = slot.replicas if slot else ()
        return any(r.server == server and is_loaded(r, self.fingerprint) for r in replicas)

    def _wait_for_slot(self) -> RouterView:
        """Return the state in which the slot serves the new policy. Raises UserError."""

        def accepts(now: RouterView) -> bool:
            slot = now.slot(self.slot)
            return bool(slot and slot.policy == self.fingerprint and slot_is_ready(slot))

        client = self.loader.client
        found = client.wait_for_router(self.router, accepts, self.loader.timeout_s)
        if found is None:
            now = client.router(self.router).slot(self.slot)
            raise UserError(
                f'slot {self.slot} is not healthy with {self.fingerprint}: '
                f'{now.text if now else "unknown"}'
            )
        return found


def check_root(server: str, root: str, path: str) -> None:
    """
    Raise UserError when a server may not load a path. The server follows links and checks again.
    """
    if not root:
        raise UserError(
            f'{server} has no policy_root, so its policy cannot change while it runs: restart it '
            'with policy_root, the folder below which its policies are. Nothing was changed'
        )
    if not PurePosixPath(path).is_relative_to(root):
        raise UserError(
            f'{path} is not below {root}, the policy_root of {server}: copy it there. Nothing was '
            'changed'
        )


def is_loaded(replica: ReplicaState, fingerprint: str) -> bool:
    """Return whether a replica serves the policy; False for an unknown policy."""
    return bool(fingerprint) and replica.policy == fingerprint and replica.state in LOADED_STATES


def slot_is_ready(slot: SlotState) -> bool:
    """Return whether each replica of a slot serves; a verdict may still bar the policy."""
    return all(replica.state is ReplicaState.State.READY for replica in slot.replicas)


def robots_in_slot(robots: list[RobotView], slot: str) -> list[RobotView]:
    """Return the robots with an episode that the policy of a slot drives."""
    return [robot for robot in robots if is_in_slot(robot, slot)]


def is_in_slot(robot: RobotView, slot: str = CHAMPION_SLOT) -> bool:
    """Return whether the last known state of a robot, however old, is an episode in a slot."""
    return robot.edge.slot == slot and bool(robot.edge.episode_id)


def wait_until_empty(loader: ServerLoader, slot: str, router: str) -> None:
    """
    Wait until no episode of the robots of a router runs in a slot. Raises UserError; nothing was
    changed then.
    """
    found = loader.client.find_robots(may_be_none=True)
    for robot in found:
        if robot.is_silent and not is_in_slot(robot, slot):
            loader.report(
                f'{robot.name} is {robot.edge.reason}; an episode of it may run in slot {slot}'
            )
    for robot in robots_in_slot(found, slot):
        if node_name(robot.edge.server) != router:
            continue
        # a silent robot may still play its episode: only its way to this machine may be cut
        age = f'; it is {robot.edge.reason}' if robot.is_silent else ''
        loader.report(
            f'wait for {robot.name}: episode {robot.edge.episode_id} runs in slot {slot}{age}'
        )
        if not loader.client.wait_for_robot(robot.node, lambda now: not is_in_slot(now, slot)):
            raise UserError(
                f'{robot.name} still runs episode {robot.edge.episode_id} in slot {slot}{age}; '
                f'wait for its end with a larger --timeout-s, or move it: `lerobot-serve drain '
                f'{slot} --now`, then `lerobot-serve restore {slot}`. Nothing was changed'
            )
