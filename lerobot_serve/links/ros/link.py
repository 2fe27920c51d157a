# SPDX-License-Identifier: Apache-2.0
"""
The link to one policy server or router over ROS 2: services and topics.

The thread that builds or configures the node builds and closes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.task import Future

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import LinkCallbacks, OnPresence, Presence
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_bytes import SERVICES
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.ros.subscriptions import (
    DedicatedSubscriptions,
    LivelinessStatus,
)
from lerobot_serve_interfaces.msg import Observation

# discovery time of a new client
DISCOVERY_S = 2.0
# service -> whether to repeat a request does no harm
CALLED = {'open_session': True, 'close_session': True, 'reset_episode': False, 'get_status': True}


class RosLink:
    """A Link; its server is watched where it replies. Callbacks of calls run in the executor."""

    reports_goodbye = False
    conflict = ''

    def __init__(
        self,
        node: Node,
        server: str,
        *,
        lifespan_s: float,
        stop: threading.Event | None = None,
        for_fleet: bool = False,
        is_shadow: bool = False,
    ) -> None:
        """
        `for_fleet`: requests of many robots, as in a router; `is_shadow`: requests to a policy in
        shadow, best effort: they may be lost and never block. `stop` ends a call.
        """
        self.server, self._node, self._stop = server, node, stop
        self._discovery_deadline_s = time.monotonic() + DISCOVERY_S
        self._services = {
            name: node.create_client(SERVICES[name], f'{server}/{name}', qos_profile=qos.SERVICES)
            for name in CALLED
        }
        opening = self._services['open_session']
        self._is_ready = opening.service_is_ready
        self._count_servers = partial(node.count_services, opening.srv_name)
        topic, profile = 'observation', qos.observation_writer(lifespan_s, for_fleet=for_fleet)
        if is_shadow:
            topic, profile = 'shadow_observation', qos.SHADOW_OBSERVATION
        self._requests = node.create_publisher(Observation, f'{server}/{topic}', profile)

    def listen(self, on_presence: OnPresence) -> None:
        """Do nothing: RosReplies watch the server."""

    def is_available(self) -> bool:
        """
        Return whether the service is discovered; its server may have just ended. Returns True
        during the discovery time of a new client.
        """
        return self._is_ready() or time.monotonic() < self._discovery_deadline_s

    def is_read(self) -> bool:
        """Return whether the server reads the requests."""
        return self._requests.get_subscription_count() > 0

    def call(self, service: str, request: bytes, timeout_s: float) -> bytes:
        """Return the response of a service. Raises ServerUnreachable."""
        client = self._services[service]
        try:
            response = call_service(
                client,
                deserialize_message(request, client.srv_type.Request),
                timeout_s,
                self._stop,
                idempotent=CALLED[service],
                count_servers=self._count_servers if service == 'open_session' else None,
            )
        except ServiceCallFailed as error:
            raise ServerUnreachable(str(error)) from None
        return bytes(serialize_message(response))

    def start_call(
        self,
        service: str,
        request: bytes,
        on_response: Callable[[bytes], None],
        on_refusal: Callable[[str], None],
    ) -> Callable[[], None]:
        """Call without waiting, unless the server is away; the executor gets the response."""
        client = self._services[service]
        if not client.service_is_ready():
            return lambda: None
        future = client.call_async(deserialize_message(request, client.srv_type.Request))
        future.add_done_callback(partial(_pass_on, on_response))
        return partial(client.remove_pending_request, future)

    def publish(self, raw: Outgoing) -> None:
        self._requests.publish(bytes(raw))

    def close(self) -> None:
        """Destroy the clients and the publisher; call it once no thread uses them."""
        for client in self._services.values():
            self._node.destroy_client(client)
        self._node.destroy_publisher(self._requests)


def _pass_on(on_response: Callable[[bytes], None], completed: Future) -> None:
    """Pass a response on; a server that ended returns none. Executor thread."""
    response = completed.result() if completed.exception() is None else None
    if response:
        on_response(bytes(serialize_message(response)))


class RosReplies:
    """
    The Replies on one topic of a node. Several share the subscriptions of a thread, which is that
    of the callbacks; to close those closes all.
    """

    def __init__(
        self,
        node: Node,
        subscriptions: DedicatedSubscriptions,
        server: str,
        topic: str,
        profile: QoSProfile = qos.ACTION_CHUNK,
    ) -> None:
        self._subscriptions, self._server = subscriptions, server
        self._topic, self._profile = topic, profile
        self._name = node.resolve_topic_name(topic)

    def listen(self, callbacks: LinkCallbacks) -> None:
        """Subscribe, before the thread of the subscriptions runs."""
        add = self._subscriptions.add
        add(self._topic, self._profile, callbacks.on_chunk)
        if callbacks.on_no_session:
            topic = f'{self._server}/{NO_SESSION_TOPIC}'
            add(topic, qos.NO_SESSION, callbacks.on_no_session)

        def on_liveliness(now: LivelinessStatus) -> None:
            if presence := presence_of(now):
                callbacks.on_presence(presence)

        self._subscriptions.watch_liveliness(self._topic, on_liveliness)

    def topic(self, session_epoch: int) -> str:
        """Return the full name of the topic, the same for each session."""
        return self._name

    def are_connected(self) -> bool:
        """Return whether the topic has a writer, those without liveliness included."""
        return self._subscriptions.publisher_count(self._topic) > 0

    def close(self) -> None:
        """Do nothing: the owner of the subscriptions closes them."""


def presence_of(now: LivelinessStatus) -> Presence | None:
    """
    Return what a change of the writers of a reply topic means; None: nothing. A writer whose lease
    expired is removed later, and another writer of the server may live.
    """
    if now.alive_change > 0:
        return Presence.THERE
    if now.alive_change < 0 and now.alive == 0:
        return Presence.EXPIRED if now.not_alive_change > 0 else Presence.CLOSED
    return None
