"""
The node policy_router: towards robots a policy server, towards policy servers a client.

The thread `intake` sends requests to replicas, `answers` chunks to robots, `alarm` sees to what is
late, `control` makes the calls that take time, `shadow` compares. A transition has a thread of
its own, so that the executor can answer clients meanwhile.
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
from lerobot_serve.ros.command_line import Command
from lerobot_serve.ros.contract import ask_from_request
from lerobot_serve.ros.decoding import subscribe
from lerobot_serve.ros.introspection import tell_calls
from lerobot_serve.ros.lane import Lane
from lerobot_serve.ros.lifecycle import LifecycleNode
from lerobot_serve.ros.parameter_server import ParameterServer
from lerobot_serve.ros.predict_forward import PredictForward
from lerobot_serve.ros.present import present
from lerobot_serve.ros.promise import Promise
from lerobot_serve.ros.replica_clients import ReplicaClients
from lerobot_serve.ros.replies import Replies
from lerobot_serve.ros.router_topics import RouterTopics
from lerobot_serve.ros.runtime import run, Runtime, UserError
from lerobot_serve.ros.shadow_clients import ShadowClients
from lerobot_serve.router import metrics, reports
from lerobot_serve.router.drops import Drops
from lerobot_serve.router.folder import state_folder
from lerobot_serve.router.goals import Goals
from lerobot_serve.router.intent import difference
from lerobot_serve.router.lookout import Here
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.recorder import make_recorder
from lerobot_serve.router.routing import Routing
from lerobot_serve.router.services import Services
from lerobot_serve.router.serving import Serving
from lerobot_serve.router.wiring import GOING, Wiring
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused
from lerobot_serve_interfaces.msg import EpisodeOutcome, Observation, ServerStatus
from lerobot_serve_interfaces.srv import OpenSession

UNCONFIGURED_TEXT = 'not configured; configure the node'
LOOK_S = 0.1
# ros2 launch gives a process five seconds to stop
FAREWELL_S = 1.5
DELIVERY_S = 0.5
TELL_S = 1.0


class PolicyRouter(LifecycleNode):
    """See the module. Built in the main thread, which also sees to autostart and farewell."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__('policy_router', runtime)
        self._settings = ParameterServer(
            self, RouterParameters, self._is_unconfigured, check=self._check_change
        )
        self._settings.on_change(self._change)
        # of file and command line; what is set live is kept beside
        self._given = self._settings.current
        self._drops = Drops()
        self.routing: Routing | None = None
        self.standing = ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT
        self._replies = Replies(self)
        self._topics = RouterTopics(self)
        self._inbox = Lane(
            self, Observation, '~/observation', qos.OBSERVATION_INBOX, self._on_observation
        )
        self._offer()
        endpoint = metrics.serve(self._settings.current, self, self._drops)
        if endpoint:
            runtime.on_close(endpoint.close)
        runtime.thread('intake', partial(self._inbox.run, runtime.stop), self._inbox.wake)
        runtime.when_running(self._autostart)
        runtime.on_farewell(self._farewell)

    def _offer(self) -> None:
        inbox = self._inbox.topic_name
        self._offered = Services(self, self._replies, self._drops, ask_from_request, inbox)
        # a group of their own: a callback that awaits must not keep the others waiting
        waiting = ReentrantCallbackGroup()
        for kind, name, callback, awaits in self._offered.table():
            group = waiting if awaits else None
            service = self.create_service(
                kind, f'~/{name}', callback, qos_profile=qos.CALLS, callback_group=group
            )
            if kind is OpenSession:
                tell_calls(self, service)
        subscribe(
            self,
            EpisodeOutcome,
            '~/outcome',
            self._offered.on_outcome,
            qos.OUTCOME,
            drop=self._drops.add,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        goals = Goals(self, self._topics.tell)
        self._goals = PredictForward(
            self, self._runtime, goals.choose, self._drops.add, refusal=goals.refusal
        )
        self.create_timer(LOOK_S, self.look)
        self.create_timer(TELL_S, self._on_slow_timer)
        self._topics.tell(self.status())

    # transitions: the main thread or one of their own

    def _autostart(self) -> None:
        if self._settings.current.autostart:
            for name in ('configure', 'activate'):
                if not self.step(name):
                    raise UserError(str(self.failure))

    def _farewell(self) -> None:
        """Close what is open elsewhere, too: the servers and the trace are to know."""
        self.end()
        if self.routing:
            self.routing.close(FAREWELL_S)

    def configure(self) -> None:
        """Meet the replicas. Raises ParameterError and StoreRefused."""
        name = self.get_fully_qualified_name()
        parameters = self._settings.current.within(self.get_namespace())
        here = Here(name, time.monotonic_ns, self.stamp, self.warn, self.inform)
        folder = state_folder(parameters.state_folder, name)
        stop = threading.Event()
        replicas = ReplicaClients(
            self,
            parameters.servers,
            lifespan_s=parameters.observation_lifespan_s,
            stop=stop,
        )
        recorder = make_recorder(parameters, name, clock=here.clock, tell=here.warn)
        wiring = Wiring(
            replicas.clients,
            self._replies,
            self._drops,
            tell=self._topics.tell,
            stamp=here.stamp,
            warn=here.warn,
            recorder=recorder,
        )
        try:
            serving = Serving(
                parameters,
                folder,
                replicas.clients,
                wiring,
                self._drops,
                clock=here.clock,
                warn=here.warn,
                inform=here.inform,
                set_split=lambda percent: self._settings.set(split_percent=percent),
                given=self._given.within(self.get_namespace()),
                now=present,
            )
        except Exception:
            replicas.close()
            raise
        if before := difference(parameters, serving.parameters):
            self._settings.set(**before)
        self.routing = Routing(
            serving,
            wiring,
            replicas,
            self._meet_shadow(parameters, replicas, stop),
            self._topics,
            self._runtime.thread,
            here,
            stop=stop,
            recorder=recorder,
        )
        # what may change live may have changed meanwhile
        self._change(self._settings.current)
        self._stand(ServerStatus.INACTIVE, 'configured; activate it to route')

    def _meet_shadow(
        self, parameters: RouterParameters, replicas: ReplicaClients, stop: threading.Event
    ) -> ShadowClients | None:
        """Return the clients of the policy in shadow, None where there is none."""
        if not parameters.shadow_policy:
            return None
        return ShadowClients(
            self,
            parameters.shadow_policy,
            replicas.clients,
            lifespan_s=parameters.observation_lifespan_s,
            stop=stop,
        )

    def activate(self) -> None:
        """Take sessions, once every replica was heard of or has had its time."""
        routing, parameters = self.routing, self._settings.current
        deadline = time.monotonic() + parameters.settle_s
        while not routing.serving.all_heard() and time.monotonic() < deadline:
            if self._runtime.asked_to_stop.wait(0.01):
                break
        routing.begin()
        self._stand(ServerStatus.ACTIVE)
        for line in reports.in_words(routing.serving):
            self.get_logger().info(line)

    def deactivate(self) -> None:
        """Take no more; what is under way is answered or told that it is not."""
        self._stand(ServerStatus.DRAINING, GOING)
        self.routing.drain()
        self._goals.drain()
        self._replies.wait_until_delivered(DELIVERY_S)
        self._stand(ServerStatus.INACTIVE, 'deactivated; activate it to route again')

    def cleanup(self) -> None:
        """Close all sessions and let the replicas go."""
        routing, self.routing = self.routing, None
        routing.close()
        self._offered.keep_replies()
        self._stand(ServerStatus.UNCONFIGURED, UNCONFIGURED_TEXT)

    def _stand(self, state: int, text: str = '') -> None:
        self.standing = state, text
        self._topics.tell(self.status())

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
        """Raise ParameterError for what cannot be had now; nothing is changed then."""
        routing = self.routing
        if routing:
            routing.serving.check_change(old, new)

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

    def later(self, routing: Routing, work: Callable[[], Any]) -> Promise:
        """
        Run `work` in the control thread; its result or exception is promised. Refused is what
        comes when that thread has ended.
        """
        outcome = Promise(self.executor)
        if not routing.later(partial(outcome.keep, work)):
            outcome.set_exception(Refused(Refusal.DRAINING, GOING))
        return outcome

    def look(self) -> None:
        routing = self.routing
        if routing:
            routing.look(self._settings.current)

    def _on_slow_timer(self) -> None:
        routing = self.routing
        if routing:
            routing.look_slowly(self._replies.has_listener, self._settings.current)
            self._offered.keep_replies()
        self._topics.tell(self.status())

    def status(self) -> ServerStatus:
        routing, (state, text) = self.routing, self.standing
        return reports.server_status(
            routing.serving if routing else None,
            state,
            text,
            stamp=self.stamp(),
            server=self.get_fully_qualified_name(),
            drops=self._drops.counts(),
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `policy_router`."""
    return run(PolicyRouter, arguments, Command('policy_router', RouterParameters))


if __name__ == '__main__':
    raise SystemExit(main())
