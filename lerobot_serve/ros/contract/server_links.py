# SPDX-License-Identifier: Apache-2.0
"""What a policy server or router offers over both links."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TYPE_CHECKING

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.service_introspection import ServiceIntrospectionState

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.names import is_reply_key
from lerobot_serve.local import offer
from lerobot_serve.local.endpoint import LocalEndpoint
from lerobot_serve.local.local_parameters import LocalParameters, serve_locally
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.reply_publishers import NO_EVENTS, ReplyPublishers
from lerobot_serve.ros.contract.session_messages import NO_SESSION_TOPIC
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ActionChunk, Extension, Observation
from lerobot_serve_interfaces.srv import OpenSession

if TYPE_CHECKING:
    from lerobot_serve.ros.contract.zenoh_serving import ZenohServing
    from lerobot_serve.zenoh.replies import ZenohReplyPublishers

REQUESTS, CHUNKS = '~/local/observation', '~/local/action_chunk'
# to routers and gateways, whose reply topics have the same word: no robot executes them as such
RELAYED, RELAYED_CHUNKS = '/replies/', '~/local/replies/action_chunk'
LOOK_PERIOD_S, LIFESPAN_S = 0.5, 3.0


class LocalCopies:
    """
    Publishes copies of what passes on the local path of a node, for recorders, while any of them
    subscribes. Threads as in local.endpoint; the executor looks for subscribers.
    """

    def __init__(self, node: Node) -> None:
        self._requests = node.create_publisher(
            Observation,
            REQUESTS,
            qos.observation_writer(LIFESPAN_S, for_fleet=True),
            event_callbacks=NO_EVENTS,
        )
        self._chunks, self._relayed = (
            node.create_publisher(ActionChunk, name, qos.ACTION_CHUNK, event_callbacks=NO_EVENTS)
            for name in (CHUNKS, RELAYED_CHUNKS)
        )
        # a look at each message would cost as much as the path
        self._has_requests = self._has_chunks = self._has_relayed = False
        node.create_timer(LOOK_PERIOD_S, self._look)

    def _look(self) -> None:
        self._has_requests, self._has_chunks, self._has_relayed = (
            each.get_subscription_count() > 0
            for each in (self._requests, self._chunks, self._relayed)
        )

    def after(self, on_request: Callable[[Raw], None]) -> Callable[[Raw], None]:
        """Return what also copies each request, once it was passed on."""

        def on_copied_request(raw: Raw) -> None:
            on_request(raw)
            if self._has_requests:
                self._requests.publish(bytes(raw))

        return on_copied_request

    def chunk(self, topic: str, raw: bytes) -> None:
        """Copy a chunk that was sent to the client of a reply topic."""
        if RELAYED in topic:
            if self._has_relayed:
                self._relayed.publish(raw)
        elif self._has_chunks:
            self._chunks.publish(raw)


class HostParameters(LocalParameters, Protocol):
    """The parameters that decide what a node serves on its host."""

    @property
    def zenoh_keys(self) -> str: ...


def serve_on_host(
    node: Node,
    parameters: HostParameters,
    on_request: Callable[[Raw], None],
    on_drop: Callable[[str], None],
) -> tuple[LocalEndpoint | None, LocalCopies | None]:
    """
    Return the local path of a node, None where it offers none, and its copies. With keys there are
    none: topics would have in the clear what the links of the site encrypt. Raises UserError.
    """
    is_copied = parameters.local_path and not parameters.zenoh_keys
    copies = LocalCopies(node) if is_copied else None
    on_request = copies.after(on_request) if copies else on_request
    return serve_locally(parameters, on_request, on_drop), copies


# type, name and callback of each service
ServiceTable = tuple[tuple[type, str, Callable[..., Any]], ...]


def serve_over_zenoh(settings: ZenohSettings, server: str) -> ZenohServing | None:
    """Return what serves over Zenoh; None without an endpoint. Raises UserError."""
    if not (settings.listen or settings.connect):
        return None
    # a server of robots over ROS 2 needs no eclipse-zenoh
    from lerobot_serve.ros.contract.zenoh_serving import ZenohServing

    return ZenohServing(settings, server)


def create_services(
    node: Node, table: ServiceTable, group: CallbackGroup | None = None
) -> dict[str, Callable[..., Any]]:
    """
    Create the services of a table over ROS 2; return the callback of each name, for Zenoh.

    Requests and responses of OpenSession are published on NAME/_service_event, the ROS 2 service
    introspection, so that a bag can record and replay them.
    """
    for kind, name, callback in table:
        is_open = kind is OpenSession
        service = node.create_service(
            kind,
            f'~/{name}',
            partial(callback, over_ros=True) if is_open else callback,
            qos_profile=qos.SERVICES,
            callback_group=group,
        )
        if is_open:
            service.configure_introspection(
                node.get_clock(), qos.SERVICE_EVENTS, ServiceIntrospectionState.CONTENTS
            )
    return {name: callback for _, name, callback in table}


class LinkReplies:
    """
    Publish replies on the link that the reply topic of a session names, or to a client of this
    host on the local path. Threads as in ReplyPublishers.
    """

    def __init__(
        self,
        ros: ReplyPublishers,
        over_zenoh: ZenohServing | None,
        local: LocalEndpoint | None = None,
        copies: LocalCopies | None = None,
    ) -> None:
        """`copies` publishes what `local` sends; None: nothing does."""
        self._ros, self._local, self._copies = ros, local, copies
        self._zenoh = over_zenoh.replies if over_zenoh else None

    def _of(self, topic: str) -> ReplyPublishers | ZenohReplyPublishers:
        return self._zenoh if self._zenoh and is_reply_key(topic) else self._ros

    def open(self, topic: str) -> None:
        """Publish on a reply topic from now on. Raises SessionRefused."""
        self._of(topic).open(topic)

    def offers(self, topic: str) -> list[Extension]:
        """Return what the reply to OpenSession offers beside this link."""
        if self._local is None:
            return []
        value = offer.encode(self._local.offer(topic))
        return [Extension(key=offer.KEY, value=array('B', value))]

    def send(self, topic: str, raw: bytes, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Publish a chunk; return False without a session on this topic."""
        if self._local and self._local.send(topic, raw, is_wanted):
            if self._copies:
                self._copies.chunk(topic, raw)
            return True
        return self._of(topic).send(topic, raw, is_wanted)

    def has_subscriber(self, topic: str) -> bool:
        """Return whether a reply topic has a subscriber."""
        is_local = self._local is not None and self._local.has_client(topic)
        return is_local or self._of(topic).has_subscriber(topic)

    def retain(self, topics: set[str]) -> None:
        """Close all other reply topics."""
        if self._local:
            self._local.retain(topics)
        self._ros.retain({topic for topic in topics if not is_reply_key(topic)})
        if self._zenoh:
            self._zenoh.retain({topic for topic in topics if is_reply_key(topic)})

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait for acknowledgements over ROS 2; Zenoh has none, and delivers before it closes."""
        return self._ros.wait_until_delivered(timeout_s)


class NoSessionPublisher:
    """
    Publishes for robots without a session, which have no reply topic, over both links. Any thread.
    """

    def __init__(self, node: Node, zenoh: ZenohServing | None) -> None:
        self._zenoh = zenoh
        self._publisher = node.create_publisher(
            ActionChunk, f'~/{NO_SESSION_TOPIC}', qos.NO_SESSION, event_callbacks=NO_EVENTS
        )

    def publish(self, chunk: Chunk) -> None:
        raw = wire_chunk.encode(chunk)
        self._publisher.publish(raw)
        if self._zenoh:
            self._zenoh.publish_no_session(chunk, raw)
