# SPDX-License-Identifier: Apache-2.0
"""
The node policy_router: a policy server to clients, a client to policy servers.

The thread `intake` sends requests to replicas, `answers` relays chunks, `alarm` handles time
limits, `control` makes slow calls, `shadow` compares. A transition has a thread of its own, so
that the executor can serve clients meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time
from typing import Any

from lifecycle_msgs.msg import State
from rclpy.callback_groups import ReentrantCallbackGroup

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.reply_publishers import ReplyPublishers
from lerobot_serve.ros.contract.session_messages import session_request_from_message
from lerobot_serve.ros.node.executor_future import ExecutorFuture
from lerobot_serve.ros.node.lifecycle import LifecycleNode
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.service_events import enable_service_events
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run, UserError
from lerobot_serve.ros.topics.checked_subscription import create_checked_subscription
from lerobot_serve.ros.topics.dedicated_subscription import DedicatedSubscription
from lerobot_serve.router.api.goal_router import GoalRouter
from lerobot_serve.router.api.services import RouterServices
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.data_path.replica_transport import DRAINING_TEXT, RosTransport
from lerobot_serve.router.monitoring import metrics, reports
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.monitoring.health_monitor import NodeContext
from lerobot_serve.router.monitoring.local_time import format_local_time
from lerobot_serve.router.monitoring.trace_recorder import make_recorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.ros.predict_chunk_proxy import PredictChunkProxy
from lerobot_serve.router.ros.replica_clients import ReplicaClients
from lerobot_serve.router.ros.router_publishers import RouterPublishers
from lerobot_serve.router.ros.shadow_clients import ShadowClients
from lerobot_serve.router.runtime import RouterRuntime
from lerobot_serve.router.storage.decisions import live_changes
from lerobot_serve.router.storage.state_folder import state_folder
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import SessionRefused
from lerobot_serve_interfaces.msg import EpisodeOutcome, Observation, ServerStatus
from lerobot_serve_interfaces.srv import OpenSession

UNCONFIGURED_TEXT = 'not configured; configure the node'
POLL_PERIOD_S = 0.1
# ros2 launch gives a process five seconds to stop
SHUTDOWN_LIMIT_S = 1.5
DELIVERY_LIMIT_S = 0.5
STATUS_PERIOD_S = 1.0


class PolicyRouter(LifecycleNode):
    """See the module. The main thread builds it, autostarts it and closes it."""

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('policy_router', runtime)
        self._settings = NodeParameters(
            self, RouterParameters, self._is_unconfigured, check=self._check_change
        )
        self._settings.on_change(self._change)
        # of file and command line, without values set live
        self._given = self._settings.current
        self._drops = DropCounters()
        self.routing: RouterRuntime | None = None
        self.standing = ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT
        self._replies = ReplyPublishers(self)
        self._topics = RouterPublishers(self)
        self._inbox = DedicatedSubscription(
            self, Observation, '~/observation', qos.OBSERVATION_READER, self._on_observation
        )
        self._create_interfaces()
        endpoint = metrics.serve(self._settings.current, self, self._drops)
        if endpoint:
            runtime.on_close(endpoint.close)
        runtime.thread('intake', partial(self._inbox.run, runtime.stop), self._inbox.wake)
        runtime.on_started(self._autostart)
        runtime.before_shutdown(self._farewell)

    def _create_interfaces(self) -> None:
        inbox = self._inbox.topic_name
        self._offered = RouterServices(
            self, self._replies, self._drops, session_request_from_message, inbox
        )
        # a callback group of their own: a callback that awaits must not block the others
        waiting = ReentrantCallbackGroup()
        for kind, name, callback, awaits in self._offered.table():
            group = waiting if awaits else None
            service = self.create_service(
                kind, f'~/{name}', callback, qos_profile=qos.SERVICES, callback_group=group
            )
            if kind is OpenSession:
                enable_service_events(self, service)
        create_checked_subscription(
            self,
            EpisodeOutcome,
            '~/outcome',
            self._offered.on_outcome,
            qos.OUTCOME,
            on_drop=self._drops.add,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        goals = GoalRouter(self, self._topics.publish)
        self._goals = PredictChunkProxy(
            self, self._runtime, goals.choose, self._drops.add, refusal=goals.refusal
        )
        self.create_timer(POLL_PERIOD_S, self.poll)
        self.create_timer(STATUS_PERIOD_S, self._on_slow_timer)
        self._topics.publish(self.status())

    # transitions: the main thread or one of their own

    def _autostart(self) -> None:
        if self._settings.current.autostart:
            for name in ('configure', 'activate'):
                if not self.run_transition(name):
                    raise UserError(str(self.failure))

    def _farewell(self) -> None:
        """Close the sessions at the servers and the trace."""
        self.deactivate_at_exit()
        if self.routing:
            self.routing.close(SHUTDOWN_LIMIT_S)

    def configure(self) -> None:
        """Connect to the replicas. Raises ParameterError and StoreRefused."""
        name = self.get_fully_qualified_name()
        parameters = self._settings.current.within(self.get_namespace())
        here = NodeContext(name, time.monotonic_ns, self.stamp, self.warn, self.inform)
        folder = state_folder(parameters.state_folder, name)
        stop = threading.Event()
        replicas = ReplicaClients(
            self,
            parameters.servers,
            lifespan_s=parameters.observation_lifespan_s,
            stop=stop,
        )
        recorder = make_recorder(parameters, name, clock=here.clock, warn=here.warn)
        wiring = RosTransport(
            replicas.clients,
            self._replies,
            self._drops,
            publish=self._topics.publish,
            stamp=here.stamp,
            warn=here.warn,
            recorder=recorder,
        )
        try:
            core = RouterCore(
                parameters,
                folder,
                replicas.clients,
                wiring,
                self._drops,
                clock=here.clock,
                warn=here.warn,
                inform=here.inform,
                set_split=lambda percent: self._settings.set_own(split_percent=percent),
                given=self._given.within(self.get_namespace()),
                now=format_local_time,
            )
        except Exception:
            replicas.close()
            raise
        if before := live_changes(parameters, core.parameters):
            self._settings.set_own(**before)
        self.routing = RouterRuntime(
            core,
            wiring,
            replicas,
            self._make_shadow_clients(parameters, replicas, stop),
            self._topics,
            self._runtime.thread,
            here,
            stop=stop,
            recorder=recorder,
        )
        # live parameters may have changed meanwhile
        self._change(self._settings.current)
        self._set_state(ServerStatus.INACTIVE, 'configured; activate it to route')

    def _make_shadow_clients(
        self, parameters: RouterParameters, replicas: ReplicaClients, stop: threading.Event
    ) -> ShadowClients | None:
        """Return the clients of the policy in shadow, None where there is none."""
        if not parameters.shadow_server:
            return None
        return ShadowClients(
            self,
            parameters.shadow_server,
            replicas.clients,
            lifespan_s=parameters.observation_lifespan_s,
            stop=stop,
        )

    def activate(self) -> None:
        """Accept sessions, once every replica has sent a status or the timeout has passed."""
        routing, parameters = self.routing, self._settings.current
        deadline = time.monotonic() + parameters.discovery_timeout_s
        while not routing.core.has_all_reports() and time.monotonic() < deadline:
            if self._runtime.stop_requested.wait(0.01):
                break
        routing.begin()
        self._set_state(ServerStatus.ACTIVE)
        for line in reports.describe_slots(routing.core):
            self.get_logger().info(line)

    def deactivate(self) -> None:
        """Refuse new work; requests in flight end with a reply or a failure."""
        self._set_state(ServerStatus.DRAINING, DRAINING_TEXT)
        self.routing.drain()
        self._goals.drain()
        self._replies.wait_until_delivered(DELIVERY_LIMIT_S)
        self._set_state(ServerStatus.INACTIVE, 'deactivated; activate it to route again')

    def cleanup(self) -> None:
        """Close all sessions and disconnect from the replicas."""
        routing, self.routing = self.routing, None
        routing.close()
        self._offered.keep_replies()
        self._set_state(ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT)

    def _set_state(self, state: int, text: str = '') -> None:
        self.standing = state, text
        self._topics.publish(self.status())

    def warn(self, text: str) -> None:
        self.get_logger().warning(text)

    def inform(self, text: str) -> None:
        self.get_logger().info(text)

    def stamp(self) -> Any:
        return self.get_clock().now().to_msg()

    def _is_unconfigured(self) -> bool:
        return self.lifecycle_state == State.PRIMARY_STATE_UNCONFIGURED

    # parameters, executor thread

    def _check_change(self, old: RouterParameters, new: RouterParameters) -> None:
        """Raise ParameterError for a change that is not possible now."""
        routing = self.routing
        if routing:
            routing.core.check_change(old, new)

    def _change(self, parameters: RouterParameters) -> None:
        routing = self.routing
        if routing:
            routing.change(parameters.within(self.get_namespace()))

    # data path: intake

    def _on_observation(self, raw: bytes) -> None:
        routing = self.routing
        if routing:
            routing.on_request(raw)
        else:
            self._drops.add('no_session')

    # executor thread

    def later(self, routing: RouterRuntime, work: Callable[[], Any]) -> ExecutorFuture:
        """
        Run `work` in the thread `control`; the future holds its result or exception, or
        SessionRefused when that thread has ended.
        """
        outcome = ExecutorFuture(self.executor)
        if not routing.later(partial(outcome.complete_with, work)):
            outcome.set_exception(SessionRefused(Refusal.DRAINING, DRAINING_TEXT))
        return outcome

    def poll(self) -> None:
        routing = self.routing
        if routing:
            routing.poll(self._settings.current)

    def _on_slow_timer(self) -> None:
        routing = self.routing
        if routing:
            routing.poll_slowly(self._replies.has_subscriber, self._settings.current)
            self._offered.keep_replies()
        self._topics.publish(self.status())

    def status(self) -> ServerStatus:
        routing, (state, text) = self.routing, self.standing
        return reports.server_status(
            routing.core if routing else None,
            state,
            text,
            stamp=self.stamp(),
            server=self.get_fully_qualified_name(),
            drops=self._drops.counts(),
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_router`."""
    return run(PolicyRouter, arguments, NodeCommand('policy_router', RouterParameters))


if __name__ == '__main__':
    raise SystemExit(main())
