# SPDX-License-Identifier: Apache-2.0
"""
The node gateway: wires doors, the gateway and its router to ROS or Zenoh.

The thread `gateway` runs the event loop with everything; `replies` receives over ROS 2, and
threads of Zenoh over Zenoh; both deposit. Threads of a pool call services of the router.
"""

from __future__ import annotations

from functools import partial

from lerobot_serve.gateway.access import Exposure, open_exposure
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.counters import collect, GatewayCounters
from lerobot_serve.gateway.doors import load_door, MakeDoor
from lerobot_serve.gateway.event_loop import GatewayLoop, Running
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters
from lerobot_serve.gateway.router.upstream import RouterUpstream
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.ros.node_links import NodeLinks
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.telemetry.http_endpoint import start_endpoint
from lerobot_serve.zenoh.keys import Role

# beside drain_timeout_s: sessions that are closed (2 s), calls of the router that end (2 s), doors
# that end their connections (2 s), and a little
END_LIMIT_S = 6.5
NAME = 'gateway'
# of a relay: its sessions share the topic
REPLY_TOPIC = '~/replies/callers'


class GatewayNode(SteadyClockNode):
    """See the module. Built in the main thread."""

    sim_time_refusal = 'a gateway bounds the time of requests'

    def __init__(self, runtime: NodeRuntime) -> None:
        """Raises UserError and ParameterError, before anything listens."""
        super().__init__(NAME, context=runtime.context)
        self._runtime = runtime
        self.parameters = parameters = NodeParameters(self, GatewayParameters).current
        self._doors = [self._prepare(name) for name in parameters.doors]
        self._counters = GatewayCounters()
        self._upstream: RouterUpstream | None = None
        self._links = self._open_links()
        self._loop = GatewayLoop(self._build, parameters.drain_timeout_s + END_LIMIT_S)
        self._endpoint = start_endpoint(
            parameters,
            partial(collect, self._counters),
            keys=parameters.zenoh_keys,
            why_not_ready=self._why_not_ready,
            why_not_alive=runtime.why_not_alive,
        )
        runtime.on_started(self._start)
        runtime.before_shutdown(self._loop.stop)

    def _prepare(self, name: str) -> tuple[str, MakeDoor, Exposure]:
        """Return a door that can be built. Raises UserError."""
        make = load_door(name)
        exposure = open_exposure(name, door_settings(self.parameters, name))
        if exposure.warning:
            self.get_logger().warning(exposure.warning)
        return name, make, exposure

    def _open_links(self) -> NodeLinks:
        """Return the link to the router. Raises UserError."""
        parameters = self.parameters
        links = NodeLinks(
            self,
            # as another router: one with the sessions of many
            Role.ROUTER,
            self.get_fully_qualified_name(),
            parameters,
            lifespan_s=parameters.request_timeout_s,
            stop=self._runtime.stop,
            on_drop=self._counters.note_lost,
        )
        self._client = links.add(
            parameters.server, REPLY_TOPIC, over_zenoh=parameters.is_over_zenoh
        )
        links.listen(lambda _: self._callbacks())
        return links

    def _callbacks(self) -> LinkCallbacks:
        """Return the deposits of the upstream, which is built later in the event loop."""

        def deposit(name: str, value: object) -> None:
            if self._upstream:
                getattr(self._upstream, name)(value)

        return LinkCallbacks(
            on_chunk=partial(deposit, 'deposit_chunk'),
            on_no_session=partial(deposit, 'deposit_no_session'),
            on_presence=partial(deposit, 'deposit_presence'),
        )

    # main thread, once the executor spins

    def _start(self) -> None:
        if not self.parameters.is_over_zenoh:
            run = partial(self._links.run, self._runtime.stop)
            self._runtime.thread('replies', run, self._links.wake)
        self._runtime.thread(NAME, self._loop.run, self._loop.request_stop)
        self._loop.wait_until_started()
        log = self.get_logger().info
        for (name, _, _), address in zip(self._doors, self._loop.addresses, strict=True):
            log(f'door {name}: {address}')
        log(f'sessions at {self.parameters.server}; callers are told: {NO_CAGE}')

    # the event loop

    def _build(self) -> Running:
        """Build everything that the loop owns. Raises UserError."""
        parameters = self.parameters
        self._upstream = RouterUpstream(
            self._client,
            parameters,
            self.get_logger(),
            count_dropped=self._counters.note_dropped,
        )
        self._upstream.start()
        gateway = Gateway(self._upstream, parameters, self.get_logger(), counters=self._counters)
        doors = [
            make(gateway, exposure, door_settings(parameters, name))
            for name, make, exposure in self._doors
        ]
        return Running(gateway, doors)

    # metrics thread

    def _why_not_ready(self) -> str:
        return self._upstream.problem if self._upstream else 'starting'

    def destroy_node(self) -> None:
        if self._endpoint:
            self._endpoint.close()
        self._links.close()
        super().destroy_node()


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `gateway`."""
    return run(GatewayNode, arguments, NodeCommand(NAME, GatewayParameters))


if __name__ == '__main__':
    raise SystemExit(main())
