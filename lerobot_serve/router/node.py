# SPDX-License-Identifier: Apache-2.0
"""
The node policy_router: a policy server to clients, a client to policy servers.

The thread `intake` forwards requests, `replies` relays chunks, `alarm` handles time limits,
`control` makes slow calls, `shadow` compares chunks. A transition runs in a separate thread, so
that the executor serves clients meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
import threading
import time
from typing import TypeVar

from builtin_interfaces.msg import Time
from lifecycle_msgs.msg import State
from rclpy.callback_groups import ReentrantCallbackGroup

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.reply_publishers import ReplyPublishers
from lerobot_serve.ros.contract.server_links import (
    create_services,
    LinkReplies,
    NoSessionPublisher,
    serve_on_host,
    serve_over_zenoh,
)
from lerobot_serve.ros.contract.session_messages import message_of, session_request_from_message
from lerobot_serve.ros.node.lifecycle import LifecycleNode
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.executor import ExecutorFuture
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.ros.subscriptions import create_checked_subscription, DedicatedSubscription
from lerobot_serve.router.api.goal_router import GoalRouter
from lerobot_serve.router.api.services import RouterServices
from lerobot_serve.router.context import format_local_time, no_wait, NodeContext
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.data_path.dispatcher import DRAINING_TEXT
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.links import ParameterSource, RouterLinks
from lerobot_serve.router.monitoring import metrics, reports
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.monitoring.trace_recorder import make_recorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.ros.predict_chunk_proxy import PredictChunkProxy
from lerobot_serve.router.ros.replica_links import ReplicaLinks
from lerobot_serve.router.ros.router_publishers import RouterPublishers
from lerobot_serve.router.ros.shadow_links import ShadowReplyLinks
from lerobot_serve.router.runtime import RouterRuntime, ThreadGroup
from lerobot_serve.router.storage.decisions import live_changes
from lerobot_serve.state_folder import state_folder
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings
from lerobot_serve_interfaces.msg import EpisodeOutcome, Observation, ServerStatus

UNCONFIGURED_TEXT = 'not configured; configure the node'
POLL_PERIOD_S = 0.1
# within the five seconds that ros2 launch waits for a process to stop
SHUTDOWN_LIMIT_S = 1.5
DELIVERY_LIMIT_S = 0.5
STATUS_PERIOD_S = 1.0
T = TypeVar('T')


class PolicyRouter(LifecycleNode):
    """See the module. The main thread creates, autostarts and closes the node."""

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('policy_router', runtime)
        self._settings = NodeParameters(
            self, RouterParameters, self._is_unconfigured, check=self._check_change
        )
        self._settings.on_change(self._change)
        # parameters of file and command line, without values set live
        self._given = self._settings.current
        self._drops = DropCounters()
        self._routing: RouterRuntime | None = None
        self.server_state = ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT
        parameters = self._settings.current
        self._zenoh = serve_over_zenoh(zenoh_settings(parameters), self.get_fully_qualified_name())
        self._local, copies = serve_on_host(
            self, parameters, self._on_observation, self._drops.add
        )
        self._replies = LinkReplies(ReplyPublishers(self), self._zenoh, self._local, copies)
        # requests of all links arrive in threads of their own
        self._intake_lock = threading.Lock()
        self._topics = RouterPublishers(self)
        self._no_session = NoSessionPublisher(self, self._zenoh)
        self._observations = DedicatedSubscription(
            self, Observation, '~/observation', qos.OBSERVATION_READER, self._on_observation
        )
        self._create_interfaces()
        endpoint = metrics.serve(self._settings.current, self, self._drops, runtime.why_not_alive)
        if endpoint:
            runtime.on_close(endpoint.close)
        runtime.thread(
            'intake', partial(self._observations.run, runtime.stop), self._observations.wake
        )
        if self._local:
            runtime.thread('local', partial(self._local.run, runtime.stop), self._local.wake)
        # for what may be there later
        self._wait: Callable[[str, float], bool] = no_wait
        runtime.on_started(self._autostart)
        runtime.before_shutdown(self._shut_down)

    def _create_interfaces(self) -> None:
        observation_topic = self._observations.topic_name
        self._router_services = RouterServices(
            self,
            self._replies,
            self._drops,
            session_request_from_message,
            message_of,
            observation_topic,
        )
        # separate callback group: a callback that awaits must not block the others
        handlers = create_services(self, self._router_services.table(), ReentrantCallbackGroup())
        if self._zenoh:
            self._zenoh.serve(
                self._runtime,
                {
                    **handlers,
                    'report_outcome': self._router_services.report_own_outcome,
                },
                on_observation=self._on_observation,
                on_drop=self._drops.add,
                log_warning=self.warn,
            )
        create_checked_subscription(
            self,
            EpisodeOutcome,
            '~/outcome',
            self._router_services.on_outcome,
            qos.OUTCOME,
            on_drop=self._drops.add,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        self._goals = PredictChunkProxy(
            self,
            self._runtime,
            GoalRouter(self),
            self._drops.add,
            link=self._zenoh.link if self._zenoh else None,
        )
        self.create_timer(POLL_PERIOD_S, self.poll)
        self.create_timer(STATUS_PERIOD_S, self._on_slow_timer)
        self._publish(self.status())

    def _publish(self, message: object) -> None:
        """Publish for operators; the status for robots over Zenoh, too. Any thread."""
        self._topics.publish(message)
        if self._zenoh and isinstance(message, ServerStatus):
            self._zenoh.publish_status(message)

    def destroy_node(self) -> None:
        """Destroy the node; called once its threads have ended."""
        if self._local:
            self._local.close()
        if self._zenoh:
            self._zenoh.close()
        super().destroy_node()

    # transitions: the main thread or a separate one

    def _autostart(self) -> None:
        if not self._settings.current.autostart:
            return
        # a lifecycle manager decides itself whether it tries again
        self._wait = self._wait_because
        for name in ('configure', 'activate'):
            if not self.run_transition(name):
                if self._runtime.stop_requested.is_set():
                    return
                raise UserError(str(self.failure))
        self._wait = no_wait

    def _wait_because(self, why: str, seconds: float) -> bool:
        """Wait for the end of the process; robots that ask meanwhile get the reason."""
        if why != self.server_state[1]:
            self.warn(why)
            self._set_state(ServerStatus.UNCONFIGURED, why)
        return self._runtime.stop_requested.wait(seconds)

    def _shut_down(self) -> None:
        """Deactivate, and close the sessions at the servers and the trace."""
        self.deactivate_at_exit()
        if self._routing:
            self._routing.close(SHUTDOWN_LIMIT_S)

    def configure(self) -> None:
        """Connect to the replicas. Raises ParameterError and StoreRefused."""
        parameters = self._settings.current.within(self.get_namespace())
        context = self._make_context()
        threads = ThreadGroup(self._runtime.thread)
        link = self._zenoh.link if self._zenoh else None
        replicas = ReplicaLinks(self, parameters, link, on_drop=self._drops.add, stop=threads.stop)
        shadow = None
        if parameters.shadow_server:
            shadow = ShadowReplyLinks(self, parameters, replicas, link, threads.stop)
        try:
            links = RouterLinks(
                replicas.clients,
                ReplicaTransport(
                    replicas.clients, self._replies.send, self._drops, self._no_session.publish
                ),
                self._publish,
                shadow=shadow,
                recorder=make_recorder(parameters, context),
            )
            source = ParameterSource(
                parameters, self._given.within(self.get_namespace()), self._settings.set_own
            )
            folder = state_folder(parameters.state_folder, context.name)
            core = RouterCore(source, folder, links, self._drops, context)
        except Exception:
            replicas.close()
            if shadow:
                shadow.close()
            raise
        if before := live_changes(parameters, core.parameters):
            self._settings.set_own(**before)
        self._routing = RouterRuntime(core, replicas, threads, context)
        # live parameters may have changed meanwhile
        self._change(self._settings.current)
        self._set_state(ServerStatus.INACTIVE, 'configured; activate it to route')

    def _make_context(self) -> NodeContext:
        return NodeContext(
            self.get_fully_qualified_name(),
            clock=time.monotonic_ns,
            stamp=self.stamp,
            local_time=format_local_time,
            log_warning=self.warn,
            log_info=self.inform,
            wait=self._wait,
        )

    def activate(self) -> None:
        """Accept sessions, once every replica is available or the timeout has passed."""
        routing, parameters = self._configured(), self._settings.current
        deadline = time.monotonic() + parameters.discovery_timeout_s
        while not routing.core.has_all_replicas() and time.monotonic() < deadline:
            if self._runtime.stop_requested.wait(0.01):
                break
        routing.begin()
        self._set_state(ServerStatus.ACTIVE)
        for line in reports.describe_slots(routing.core.table, routing.core.now_ns):
            self.inform(line)

    def deactivate(self) -> None:
        """Refuse new sessions and requests; requests in flight end with a reply or a failure."""
        self._set_state(ServerStatus.DRAINING, DRAINING_TEXT)
        self._configured().drain()
        self._goals.drain()
        self._replies.wait_until_delivered(DELIVERY_LIMIT_S)
        self._set_state(ServerStatus.INACTIVE, 'deactivated; activate it to route again')

    def cleanup(self) -> None:
        """Close all sessions and disconnect from the replicas."""
        routing, self._routing = self._configured(), None
        routing.close()
        self._router_services.close_unused_reply_topics()
        self._set_state(ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT)

    def _configured(self) -> RouterRuntime:
        """Return the runtime. Only after `configure`."""
        assert self._routing is not None
        return self._routing

    @property
    def core(self) -> RouterCore | None:
        """The core; None unless configured. Any thread."""
        routing = self._routing
        return routing.core if routing else None

    def _set_state(self, state: int, text: str = '') -> None:
        self.server_state = state, text
        self._publish(self.status())

    def warn(self, text: str) -> None:
        self.get_logger().warning(text)

    def inform(self, text: str) -> None:
        self.get_logger().info(text)

    def stamp(self) -> Time:
        return self.get_clock().now().to_msg()

    def _is_unconfigured(self) -> bool:
        return bool(self.lifecycle_state == State.PRIMARY_STATE_UNCONFIGURED)

    # parameters, executor thread

    def _check_change(self, old: RouterParameters, new: RouterParameters) -> None:
        """Raise ParameterError for a change that is not possible now."""
        core = self.core
        if core:
            core.check_change(old, new)

    def _change(self, parameters: RouterParameters) -> None:
        core = self.core
        if core:
            core.change_parameters(parameters.within(self.get_namespace()))

    # data path: intake

    def _on_observation(self, raw: Raw) -> None:
        core = self.core
        if core:
            with self._intake_lock:
                core.on_request(raw)
        else:
            self._drops.add('no_session')

    # executor thread

    def run_in_control_thread(self, core: RouterCore, work: Callable[[], T]) -> Awaitable[T]:
        """
        Run `work` in the thread `control`; the future holds its result or exception, or
        SessionRefused when that thread has ended.
        """
        outcome = ExecutorFuture(self.executor)
        if not core.jobs.put(partial(outcome.complete_with, work)):
            outcome.set_exception(SessionRefused(Refusal.DRAINING, DRAINING_TEXT))
        return outcome

    def until_durable(self, core: RouterCore) -> Awaitable[str]:
        """Return a future of why what is queued for the store is not in it; empty when it is."""
        written = ExecutorFuture(self.executor)
        core.writer.when_durable(written.set_result)
        return written

    def poll(self) -> None:
        routing = self._routing
        if routing:
            routing.poll()

    def _on_slow_timer(self) -> None:
        routing = self._routing
        if routing:
            routing.monitor.poll_slowly(self._replies.has_subscriber)
            self._router_services.close_unused_reply_topics()
        self._publish(self.status())

    def status(self) -> ServerStatus:
        core, (state, text) = self.core, self.server_state
        conflict = self._zenoh.conflict if self._zenoh else ''
        return reports.server_status(
            core.table if core else None,
            self._drops.counts(),
            server_state=(state, '; '.join(filter(None, (conflict, text)))),
            stamp=self.stamp(),
            server=self.get_fully_qualified_name(),
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_router`."""
    return run(PolicyRouter, arguments, NodeCommand('policy_router', RouterParameters))


if __name__ == '__main__':
    raise SystemExit(main())
