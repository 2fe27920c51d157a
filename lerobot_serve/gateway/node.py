# SPDX-License-Identifier: Apache-2.0
"""
The node gateway: wires doors, the gateway and its router to ROS or Zenoh.

The thread `gateway` runs the event loop with everything; `replies` receives over ROS 2, and
threads of Zenoh over Zenoh; both deposit. Threads of a pool call services of the router.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lerobot_serve.contract.names import node_name
from lerobot_serve.gateway.access import Exposure, open_exposure
from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.counters import collect, GatewayCounters
from lerobot_serve.gateway.doors import load_door, MakeDoor
from lerobot_serve.gateway.event_loop import GatewayLoop, Running
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters
from lerobot_serve.gateway.ros.ros_link import RosServerLink
from lerobot_serve.gateway.router.server_link import LinkCallbacks
from lerobot_serve.gateway.router.upstream import RouterUpstream
from lerobot_serve.local.local_parameters import local_paths
from lerobot_serve.local.path import MakePath
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.telemetry.http_endpoint import start_endpoint
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings

if TYPE_CHECKING:
    from lerobot_serve.gateway.ros.zenoh_link import ZenohServerLink

# beside drain_timeout_s: sessions that are closed (2 s), calls of the router that end (2 s), doors
# that end their connections (2 s), and a little
END_LIMIT_S = 6.5
NAME = 'gateway'


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
        self._link: RosServerLink | ZenohServerLink | None = None
        # the subscriptions of the link are made here, by the thread that builds the node
        self._ros_link = None if parameters.is_over_zenoh else self._open_ros_link()
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

    def _open_ros_link(self) -> RosServerLink:
        link = RosServerLink(
            self,
            self.parameters.server,
            lifespan_s=self.parameters.request_timeout_s,
            stop=self._runtime.stop,
            make_path=self._make_path(),
        )
        link.listen(self._callbacks())
        return link

    def _make_path(self) -> MakePath | None:
        return local_paths(
            self.parameters, self.parameters.request_timeout_s, self.get_logger().info
        )

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
        if self._ros_link:
            link = self._ros_link
            self._runtime.thread('replies', partial(link.run, self._runtime.stop), link.wake)
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
        self._link = self._ros_link or self._open_zenoh_link()
        self._upstream = RouterUpstream(
            self._link,
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

    def _open_zenoh_link(self) -> ZenohServerLink:
        # a gateway over ROS 2 needs no eclipse-zenoh
        from lerobot_serve.gateway.ros.zenoh_link import ZenohServerLink
        from lerobot_serve.zenoh.link import ZenohLink

        return ZenohServerLink(
            ZenohLink(zenoh_settings(self.parameters)),
            node_name(self.parameters.server),
            self.get_fully_qualified_name(),
            self._callbacks(),
            on_drop=self._counters.note_lost,
            lifespan_s=self.parameters.request_timeout_s,
            make_path=self._make_path(),
        )

    # metrics thread

    def _why_not_ready(self) -> str:
        return self._upstream.problem if self._upstream else 'starting'

    def destroy_node(self) -> None:
        if self._endpoint:
            self._endpoint.close()
        if self._link:
            self._link.close()
        super().destroy_node()


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `gateway`."""
    return run(GatewayNode, arguments, NodeCommand(NAME, GatewayParameters))


if __name__ == '__main__':
    raise SystemExit(main())
