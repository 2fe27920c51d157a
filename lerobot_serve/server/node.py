# SPDX-License-Identifier: Apache-2.0
"""
The node policy_server: receive observations, run the policy, publish chunks.

The thread `intake` receives requests, `inference` owns the policy and its device; a quick policy
without a device predicts in the thread that receives. Each lifecycle transition has its own
thread, so that the executor keeps replying to clients.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
import threading
import time

from lifecycle_msgs.msg import State
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn

from lerobot_serve.contract.cdr import encodable_text, Raw
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.runtime import memory, memory_reservation
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.predict_chunk_action import PredictChunkAction
from lerobot_serve.ros.contract.reply_publishers import ReplyPublishers
from lerobot_serve.ros.contract.server_links import (
    create_services,
    LinkReplies,
    NoSessionPublisher,
    serve_on_host,
    serve_over_zenoh,
)
from lerobot_serve.ros.contract.session_messages import session_request_from_message
from lerobot_serve.ros.node.lifecycle import LifecycleNode
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.ros.subscriptions import DedicatedSubscription
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.inference.inference_loop import InferenceLoop, ReplySender
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.messages import (
    policy_summary,
    server_status_message,
    ServerState,
    UNCONFIGURED_TEXT,
)
from lerobot_serve.server.observability import metrics
from lerobot_serve.server.observability.request_observer import make_request_observer, NodeContext
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.policy_swap import check_policy_path_change, PolicySwap, SwapRefused
from lerobot_serve.server.sessions.session_service import SessionService
from lerobot_serve.zenoh.zenoh_parameters import zenoh_settings
from lerobot_serve_interfaces.msg import Observation, ServerStatus
from lerobot_serve_interfaces.srv import SwapPolicy

CLEANUP_TIMEOUT_S = 5.0
# ros2 launch kills after five seconds, and draining may have used most of them
DELIVERY_TIMEOUT_S = 0.2
# for example a recorder; the middleware needs seconds to detect a killed one
REPLIES_UNACKNOWLEDGED = 'a subscriber had not acknowledged the last replies'


class PolicyServer(LifecycleNode):
    """See the module. The main thread creates it, autostarts it and shuts it down."""

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('policy_server', runtime)
        self._node_parameters = NodeParameters(
            self, ServerParameters, self._is_unconfigured, check_policy_path_change
        )
        self._node_parameters.on_change(self._apply_parameters)
        self._statistics, self._request_queue = ServerStatistics(), RequestQueue()
        context = NodeContext(
            self.get_fully_qualified_name(), time.monotonic_ns, self.log_warning, self.log_info
        )
        self._observer = make_request_observer(lambda: self.parameters, self._statistics, context)
        self.core: ServerCore | None = None
        self.server_state = ServerState(ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT)
        self._zenoh = serve_over_zenoh(
            zenoh_settings(self.parameters), self.get_fully_qualified_name()
        )
        self._local, copies = serve_on_host(
            self, self.parameters, self._on_observation, self._statistics.record_drop
        )
        self._reply_publishers = LinkReplies(
            ReplyPublishers(self), self._zenoh, self._local, copies
        )
        self._sender = ReplySender(self._reply_publishers.send, self._statistics, self._observer)
        self._inference = InferenceLoop(
            self._request_queue, self._sender, lambda: self.core, lambda: self.server_state
        )
        # observations of all links arrive in threads of their own
        self._intake_lock = threading.Lock()
        # a status is built and published as one, so that an older one never comes later
        self._status_lock = threading.Lock()
        self._swap = PolicySwap(
            self,
            self._request_queue,
            self._statistics,
            self._observer,
            start_thread=partial(runtime.thread, loads=True),
            stop=runtime.stop,
        )
        self._create_endpoints()
        endpoint = metrics.start_endpoint(
            self.parameters,
            self._statistics,
            self._snapshot,
            self._observer.trace_losses,
            runtime.why_not_alive,
        )
        if endpoint:
            runtime.on_close(endpoint.close)
        producers = [
            runtime.thread('inference', self._inference.run, self._request_queue.close),
            runtime.thread('intake', partial(self._inbox.run, runtime.stop), self._inbox.wake),
        ]
        if self._local:
            producers.append(
                runtime.thread('local', partial(self._local.run, runtime.stop), self._local.wake)
            )
        self._observer.start_threads(runtime.thread, runtime.stop, producers)
        runtime.on_started(self._autostart)
        runtime.before_shutdown(self._on_shutdown)

    def _create_endpoints(self) -> None:
        """Create the topics, services, the action and the timer."""
        self._status_publisher = self.create_publisher(
            ServerStatus, '~/status', qos.STATE, qos_overriding_options=qos.OVERRIDABLE
        )
        self._no_session = NoSessionPublisher(self, self._zenoh)
        self._inbox = DedicatedSubscription(
            self, Observation, '~/observation', qos.OBSERVATION_READER, self._on_observation
        )
        self._inbox.add(
            '~/shadow_observation', qos.SHADOW_OBSERVATION_READER, self._on_observation
        )
        self._session_service = SessionService(
            self,
            self._reply_publishers,
            self._statistics,
            self._observer,
            session_request_from_message,
            self._inbox.topic_name,
        )
        handlers = create_services(self, self._session_service.table())
        self.create_service(
            SwapPolicy, '~/swap_policy', self._on_swap_policy, qos_profile=qos.SERVICES
        )
        if self._zenoh:
            self._zenoh.serve(
                self._runtime,
                handlers,
                on_observation=self._on_observation,
                on_drop=self._statistics.record_drop,
                log_warning=self.log_warning,
            )
            self._zenoh.serve_predictions(self._inference.predict, self._withdraw)
        self._action = PredictChunkAction(
            self, self._inference.predict, self._withdraw, self._request_queue.__len__
        )
        self.create_timer(self.parameters.status_period_s, self._on_timer)
        self._publish_status()

    def destroy_node(self) -> None:
        """Destroy the node; called once its threads have ended."""
        if self._local:
            self._local.close()
        if self._zenoh:
            self._zenoh.close()
        super().destroy_node()

    # transitions: main thread or a transition thread

    def _autostart(self) -> None:
        if self.parameters.autostart:
            for name in ('configure', 'activate'):
                if not self.run_transition(name):
                    raise UserError(str(self.failure))

    def _on_shutdown(self) -> None:
        """Drain, then send an error reply to each request that is still queued."""
        self.deactivate_at_exit()
        core = self.core
        if core is None:
            return
        given_up = core.abort_waiting()
        for queued, chunk in given_up:
            self._sender.send(core, queued, chunk)
        if given_up:
            self._reply_publishers.wait_until_delivered(DELIVERY_TIMEOUT_S)

    def configure(self) -> None:
        """Load, check and warm up the policy. Raises PolicyError."""
        self._set_state(ServerStatus.UNCONFIGURED, 'loading the policy')
        parameters = self.parameters
        if parameters.policy_path:
            # libraries and weights may take minutes
            self.log_info(f'loading {parameters.policy_path}')
        reserve = partial(
            memory_reservation.reserve,
            log_warning=self.log_warning,
            wait_for_stop=self._runtime.stop.wait,
        )
        make = partial(policy_loading.load_worker, parameters, '', self._statistics, reserve)
        try:
            worker = self._request_queue.run_job(make)
        except Exception as error:
            self._set_state(ServerStatus.FAILED, f'{error}; correct it and configure again')
            raise
        self.core = ServerCore(
            worker,
            self._request_queue,
            self._statistics,
            parameters,
            self._observer,
            self._no_session.publish,
        )
        self._observer.on_policy_changed(self.core.description)
        self._swap.reset()
        # live parameters may have changed while the policy was loading
        self._apply_parameters(self.parameters)
        self._set_state(
            ServerStatus.INACTIVE, 'policy loaded and warmed up; activate the node to serve'
        )

    def activate(self) -> None:
        """Accept sessions."""
        core = self._configured_core()
        core.accept_requests()
        self._set_state(ServerStatus.ACTIVE)
        for note in core.description.notes:
            self.log_warning(note)
        what = policy_summary(core.description)
        self.log_info(f'serving {what} as {self.get_fully_qualified_name()}')

    def deactivate(self) -> None:
        """Drain: reply to the outstanding requests and refuse new sessions."""
        core, limit_s = self._configured_core(), self.parameters.drain_timeout_s
        deadline = time.monotonic() + limit_s
        text = 'the server is draining; open a session on another server'
        core.stop_accepting(SessionRefused(Refusal.DRAINING, text))
        self._set_state(ServerStatus.DRAINING, text)
        drain_steps = {
            'replies were outstanding': core.drain,
            'action goals had no result': self._action.wait_until_replied,
            REPLIES_UNACKNOWLEDGED: self._reply_publishers.wait_until_delivered,
        }
        unfinished = (
            what
            for what, wait in drain_steps.items()
            if not wait(max(0.0, deadline - time.monotonic()))
        )
        if what := next(unfinished, ''):
            self.log_warning(f'{what} after drain_timeout_s ({limit_s:g} s)')
        self._set_state(ServerStatus.INACTIVE, 'drained; activate the node to serve again')

    def cleanup(self) -> None:
        """Close all sessions and unload the policy."""
        self._configured_core().close(CLEANUP_TIMEOUT_S)
        self.core = None
        self._observer.on_policy_changed(None)
        self._reply_publishers.retain(set())
        self._request_queue.run_job(memory.release_unused, CLEANUP_TIMEOUT_S)
        self._set_state(ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT)

    def _configured_core(self) -> ServerCore:
        """Return the core; the lifecycle allows no other transition without one."""
        if self.core is None:
            raise RuntimeError(UNCONFIGURED_TEXT)
        return self.core

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        outcome = super().on_shutdown(state)
        self._set_state(ServerStatus.UNCONFIGURED, 'shut down; restart the process')
        return outcome

    def _set_state(self, state: int, text: str = '') -> None:
        before, self.server_state = self.server_state, ServerState(state, text)
        self._observer.on_state_changed(before.name, self.server_state.name, text)
        self._publish_status()

    @property
    def parameters(self) -> ServerParameters:
        return self._node_parameters.current

    def log_info(self, text: str) -> None:
        self.get_logger().info(text)

    def log_warning(self, text: str) -> None:
        self.get_logger().warning(text)

    def _snapshot(self) -> metrics.ServerSnapshot:
        return metrics.ServerSnapshot(self.core, self.server_state)

    def _is_unconfigured(self) -> bool:
        unconfigured: int = State.PRIMARY_STATE_UNCONFIGURED
        return self.lifecycle_state == unconfigured

    # data path, threads of the links

    def _on_observation(self, raw: Raw) -> None:
        core = self.core
        if core is None:
            self._statistics.record_drop('no_session')
            return
        with self._intake_lock:
            arrival = core.enqueue(raw, time.monotonic_ns(), may_serve=True)
        if arrival is None:
            return
        queued, refusal = arrival
        if refusal:
            self._sender.send(core, queued, refusal)
        else:
            self._inference.serve(core, queued)

    # the swap of a policy, see swap.policy_swap

    def _on_swap_policy(
        self, request: SwapPolicy.Request, response: SwapPolicy.Response
    ) -> SwapPolicy.Response:
        try:
            response.text, response.accepted = self._swap.begin(request.policy_path), True
        except SwapRefused as refused:
            response.text = f'refused: {refused}'
        response.text = encodable_text(response.text)
        return response

    @property
    def inactive_reason(self) -> str:
        """Why the server does not serve; empty while it does. Any thread."""
        state = self.server_state
        return '' if state.state == ServerStatus.ACTIVE else f'{state.name}: {state.text}'

    def on_swap_status(self) -> None:
        """Publish the status: that of a swap, or the policy, has changed. Any thread."""
        self._publish_status()

    def on_swapped(self, folder: Path) -> None:
        """Name the folder of the policy that is served now. Thread `swap`."""
        try:
            self._node_parameters.set_reconfigured(policy_path=str(folder))
        except ParameterError as error:
            self.log_warning(f'policy_path still names the earlier folder: {error}')

    # housekeeping, executor thread

    def _withdraw(self, key: str) -> bool:
        """Cancel a queued one-shot request; False if the policy has begun on it."""
        queued = self._request_queue.withdraw_one_shot(key)
        if queued:
            self._statistics.record_drop('withdrawn', has_request_record=True)
            self._observer.on_dropped(queued, 'withdrawn')
        return queued is not None

    def _apply_parameters(self, parameters: ServerParameters) -> None:
        self._observer.on_parameters_changed(parameters)
        if self.core:
            self.core.apply_parameters(parameters)

    def _on_timer(self) -> None:
        if self.core:
            self._session_service.close_expired(self.core)
        self._observer.poll()
        self._publish_status()

    def _publish_status(self) -> None:
        with self._status_lock:
            status = self.status()
            self._status_publisher.publish(status)
            if self._zenoh:
                self._zenoh.publish_status(status)

    def _status_text(self) -> str:
        """Return the text of the state, and whether another server has this name."""
        conflict = self._zenoh.conflict if self._zenoh else ''
        return '; '.join(filter(None, (conflict, self.server_state.text)))

    def status(self) -> ServerStatus:
        return server_status_message(
            self.core,
            self._statistics,
            replace(self.server_state, text=self._status_text()),
            stamp=self.get_clock().now().to_msg(),
            server=self.get_fully_qualified_name(),
            slot=self.parameters.slot,
            swap=self._swap.status,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_server`."""
    return run(PolicyServer, arguments, NodeCommand('policy_server', ServerParameters))


if __name__ == '__main__':
    raise SystemExit(main())
