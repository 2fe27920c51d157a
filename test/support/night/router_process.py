# SPDX-License-Identifier: Apache-2.0
"""
The router of a night: the real core with its store, trace, monitor and commands, without threads.
It is killed at any moment and started again from what is on the disk. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.ros.contract.service_bytes import encode
from lerobot_serve.router.api.slot_commands import run_slot_command
from lerobot_serve.router.canary.controller import CHAMPION
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.links import ParameterSource, RouterLinks
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.monitoring.health_monitor import HealthMonitor
from lerobot_serve.router.monitoring.trace_recorder import make_recorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve_interfaces.msg import CanaryState, RouterState
from support.night.clock import NightClock
from support.night.servers import NightServer
from support.replacing import replace
from support.router.contexts import make_context
from support.router.recording_transport import RecordingTransport
from support.router.runtime_rig import Replicas

NAME = '/policy_router'
# the servers of the fleet publish their status each second; here with each poll
POLL_S, SLOW_POLL_S = 5.0, 20.0


class Links(RecordingTransport):
    """The transport of a router, and an observer of its placements."""

    def __init__(self, on_placed: Callable[[str, str, str], None]) -> None:
        super().__init__(capacity=100)
        self._on_placed = on_placed

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        self._on_placed(placement.routing_key, placement.slot, policy)


class NightRouter:
    """See the module. `core` is None while the process is away."""

    def __init__(
        self,
        clock: NightClock,
        folder: Path,
        parameters: RouterParameters,
        servers: Mapping[str, NightServer],
        *,
        on_placed: Callable[[str, str, str], None],
        on_canary: Callable[[CanaryState], None],
    ) -> None:
        self._clock, self._folder, self._given = clock, folder, parameters
        self._servers, self._on_placed, self._on_canary = servers, on_placed, on_canary
        self.core: RouterCore | None = None
        self.log: list[str] = []
        self.state: records.RouterState | None = None
        self.canary: CanaryState | None = None
        self.start()
        clock.every(POLL_S, self.poll)
        clock.every(SLOW_POLL_S, self._poll_slowly)

    # the process

    def start(self) -> None:
        clock = self._clock
        self.links = Links(self._on_placed)
        self._drops = DropCounters()
        self.context = replace(
            make_context(clock, self.log, self.log, NAME), local_time=clock.local_time
        )
        recorder = make_recorder(self._given, self.context, clock.wall_s)
        links = RouterLinks(
            {name: server.client for name, server in self._servers.items()},
            self.links,
            self._publish,
            recorder=recorder,
            observers=(self.links,),
        )
        source = ParameterSource(self._given, self._given, self._set_own)
        core = RouterCore(source, self._folder, links, self._drops, self.context)
        self.monitor = HealthMonitor(core, Replicas(), self.context)
        self.core = core
        self._report_servers()
        core.pin_policies()
        core.session_manager.check_replicas()
        self.monitor.record_policies()
        core.is_open = True
        self._poll_slowly()
        self.poll()

    def kill(self) -> None:
        """End as SIGKILL does: what is queued for the disk is lost."""
        core, self.core = self.core, None
        if core is None:
            return
        core.writer.store.close()
        core._call_pool.close()
        if core.recorder:
            core.recorder.writer._output.close()

    def stop(self) -> None:
        """End in an orderly way."""
        core, self.core = self.core, None
        if core:
            if core.recorder:
                core.recorder.writer.close()
            core.close()

    # its thread

    def poll(self) -> None:
        core = self.core
        if core is None:
            return
        self._report_servers()
        self.monitor.poll()
        core.dispatcher.on_timer(self._clock.now_ns)
        self._run_jobs(core)
        core.writer.flush()
        if core.recorder:
            core.recorder.writer.drain()

    def _poll_slowly(self) -> None:
        if self.core:
            self.monitor.poll_slowly(lambda topic: True)
            self._run_jobs(self.core)

    @staticmethod
    def _run_jobs(core: RouterCore) -> None:
        core.jobs._queue.put(None)
        core.jobs.run()

    def _report_servers(self) -> None:
        for name, server in self._servers.items():
            self.monitor.on_status(name, server.status)

    def _set_own(self, **values: object) -> None:
        assert self.core
        self.core.change_parameters(replace(self.core.parameters, **values))

    def _publish(self, message: object) -> None:
        if isinstance(message, RouterState):
            self.state = decode(records.RouterState, encode(message))
        elif isinstance(message, CanaryState):
            self.canary = message
            self._on_canary(message)

    # what others ask of it

    @property
    def view(self) -> RouterView | None:
        """The state as operators see it; None while the router is away."""
        if self.core is None or self.state is None or self.canary is None:
            return None
        self._poll_slowly()
        canary = decode(records.CanaryState, encode(self.canary))
        return RouterView(NAME, self.state, canary)

    @property
    def champion(self) -> str:
        return self.core.slots[CHAMPION].policy if self.core else ''

    def command(self, number: int, reason: str, **values: object) -> str:
        """Run a command of ControlSlot. Raises SlotCommandRejected."""
        assert self.core
        request = records.ControlSlotRequest(number, reason=reason, **values)
        text = run_slot_command(self.core, request)
        self.poll()
        return text

    def open(self, request: OpenSessionRequest) -> None:
        """Open the session of a robot. Raises SessionRefused."""
        assert self.core
        self.core.session_manager.open(request)

    def request(self, raw: bytes) -> None:
        """Take a request of a robot, and the replies of the servers behind it."""
        core = self.core
        assert core
        core.on_request(raw)
        while self.links.sent and core is self.core:
            server, asked = self.links.sent.popleft()
            if answer := self._servers[server].reply(asked):
                core.on_reply(server, answer)
        self._run_jobs(core)
