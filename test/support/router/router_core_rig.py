# SPDX-License-Identifier: Apache-2.0
"""A router between configure and cleanup, with fake servers behind it and a clock that waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lerobot_serve.contract.records import ControlSlotRequest
from lerobot_serve.router.api.slot_commands import run_slot_command
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.links import ParameterSource, RouterLinks
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sessions.client_sessions import ClientSession
from support.router.contexts import make_context
from support.router.dispatch_rig import ask_of, status_of
from support.router.recording_transport import RecordingTransport
from support.router.replica_rig import FakeReplica

MS, SECOND = 1_000_000, 1_000_000_000
TWO_SLOTS = {'slot_a': ('/a1', '/a2'), 'slot_b': ('/b1',)}


class RoutingRig:
    """Two slots unless `parameters` say otherwise; every server is heard of and ready."""

    name = '/policy_router'

    def __init__(
        self,
        folder: Path,
        *,
        heard: bool = True,
        given: RouterParameters | None = None,
        **parameters: object,
    ) -> None:
        self.now_ns = 1000 * SECOND
        self.parameters = RouterParameters(**(parameters or TWO_SLOTS))
        self.drops, self.outside = DropCounters(), RecordingTransport()
        self.told: list[str] = []
        self.informed: list[str] = []
        self.splits: list[int] = []
        self.clients = {name: FakeReplica(name) for name in self.parameters.servers}
        self.published: list[object] = []
        self.context = make_context(self, self.told, self.informed, self.name)
        self.core = RouterCore(
            ParameterSource(self.parameters, given or self.parameters, self._set_own),
            folder,
            RouterLinks(
                self.clients,
                self.make_transport(),
                self.published.append,
                observers=(self.outside,),
            ),
            self.drops,
            self.context,
        )
        self.slots, self.replicas = self.core.slots, self.core.replicas
        if heard:
            for name in self.replicas:
                self.hear(name)
        self.core.pin_policies()

    def _set_own(self, **values: object) -> None:
        """Set parameters at once, as the node does; a split is only noted."""
        if 'split_percent' in values:
            self.splits.append(values.pop('split_percent'))
        self.core.change_parameters(replace(self.core.parameters, **values))

    def set_live(self, **values: object) -> None:
        """`ros2 param set`."""
        core = self.core
        new = replace(core.parameters, **values)
        core.check_change(core.parameters, new)
        core.change_parameters(new)

    def command(
        self, command: int, slot: str = '', reason: str = 'test', at_once: bool = False, **values
    ) -> str:
        """Run a command of ControlSlot. Raises SlotCommandRejected."""
        number = ControlSlotRequest.Command.of(command)
        request = ControlSlotRequest(
            number, slot, move_running_episodes=at_once, reason=reason, **values
        )
        return run_slot_command(self.core, request)

    def make_transport(self) -> RecordingTransport:
        """Return what carries requests and replies."""
        return self.outside

    def hear(
        self,
        server: str,
        *,
        active: bool = True,
        policy: str = '',
        text: str = '',
        swapped: bool = False,
    ) -> str:
        """A server tells of itself; return what changed."""
        slot = self.replicas[server].slot
        seen = status_of(
            policy or f'act@{slot}', slot, active=active, swapped=swapped, load=0.25, text=text
        )
        return self.core.update_replica(server, seen)

    def away(self, *servers: str) -> None:
        for server in servers:
            self.core.set_available(server, is_available=False)

    def robot(self, name: str = 'robot', epoch: int = 1) -> ClientSession:
        """Take in a robot that has its sessions everywhere."""
        places = {slot.name: tuple(slot.replicas) for slot in self.slots.values()}
        robot = ClientSession(ask_of(name, epoch), places, self.now_ns)
        self.core.table.sessions.add(robot)
        return robot

    def close(self) -> None:
        self.core.close()
