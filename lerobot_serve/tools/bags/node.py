# SPDX-License-Identifier: Apache-2.0
"""
A node that records topics of the ROS graph: it hands their messages to a writer.

The executor thread discovers topics and deposits their messages as bytes; the thread `writing`
owns the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from pathlib import Path
import threading
import time
from typing import Protocol, TYPE_CHECKING, TypedDict

from ament_index_python.packages import get_package_share_directory, PackageNotFoundError
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.topic_endpoint_info import TopicEndpointInfo

from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.bags.message import (
    BagMessage,
    COMPRESSED_TYPE,
    DIAGNOSTICS,
    is_service_event,
    PACKAGE,
    RAW_TYPE,
    TYPE_END,
)
from lerobot_serve.tools.bags.metadata import BagTopic, Duration, OfferedProfile, type_definition
from lerobot_serve.tools.bags.write_queue import WriteQueue
from lerobot_serve.zenoh.settings import ZenohSettings

if TYPE_CHECKING:
    from lerobot_serve.tools.bags.zenoh_recording import ZenohRecording


GRAPH_POLL_S = 0.2
# between two waits for messages
REST_S = 0.01
# the largest depth of our publishers: a recorder falls behind only briefly
SUBSCRIPTION_DEPTH = 1024
# two seconds of a camera; 1024 frames in the history of the middleware would be 1 GB
FRAMES_DEPTH = 60
INVALID = 'INVALID'


class TopicSelection(Protocol):
    """Selects topics by name and type; asked again for each topic that is not yet recorded."""

    def takes(self, topic: str, kind: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Selects topics: the named ones, all, or by default those of this package."""

    topics: frozenset[str] = frozenset()
    all: bool = False

    def takes(self, topic: str, kind: str) -> bool:
        if self.topics:
            return topic in self.topics
        is_hidden = any(token.startswith('_') for token in topic.split('/'))
        if is_hidden and not is_service_event(topic, kind):
            return False
        return self.all or is_own_type(kind) or topic == DIAGNOSTICS


class MessageInfo(TypedDict):
    """Times that rclpy passes with a message."""

    received_timestamp: int
    source_timestamp: int


class TopicRecorderNode(SteadyClockNode):
    """Passes the messages of selected topics to a queue. Built in the main thread."""

    sim_time_refusal = 'a bag holds the times at which messages were sent and received'
    # for the log
    does = 'recording'

    def __init__(
        self,
        runtime: NodeRuntime,
        name: str,
        recording: WriteQueue,
        topics: TopicSelection,
        zenoh: ZenohRecording | None = None,
    ) -> None:
        """Record from now on, until the runtime ends; `zenoh` is closed then."""
        super().__init__(name, context=runtime.context, enable_rosout=False)
        # each of the robots has a dozen topics, and no message is urgent here
        runtime.executor.rest_s = REST_S
        self._topics, self._zenoh = topics, zenoh
        self.recording = recording
        self._recorded: set[str] = set()
        # topics of the recording
        self._added: set[str] = set()
        self._adding = threading.Lock()
        self._refused: set[str] = set()
        self._writing = runtime.thread('writing', recording.run, recording.close)
        runtime.before_shutdown(self._finish)
        self.create_timer(GRAPH_POLL_S, self._poll_graph)
        self._poll_graph()
        if self._zenoh:
            self._zenoh.begin(self._add_zenoh_topic, recording.put)
            self.get_logger().info(f'{self.does} what passes over Zenoh')

    def _add_zenoh_topic(self, name: str, kind: str) -> None:
        """Add a topic that passes over Zenoh. A thread of Zenoh."""
        encoding, text = type_definition(kind, share_folder)
        self._add(BagTopic(name, kind, encoding, text, (OfferedProfile(),), ''))
        self.get_logger().info(f'{self.does} {name} ({kind}), over Zenoh')

    def _add(self, topic: BagTopic) -> None:
        """Add a topic once, whichever link it is heard on first."""
        with self._adding:
            if topic.name not in self._added:
                self._added.add(topic.name)
                self.recording.add(topic)

    def _finish(self) -> None:
        if self._zenoh:
            self._zenoh.close()
        self.recording.close()
        self._writing.join()

    def _poll_graph(self) -> None:
        """Subscribe to new topics."""
        for name, kinds in self.get_topic_names_and_types():
            is_known = name in self._recorded or name in self._refused
            if not is_known and len(kinds) == 1 and self._topics.takes(name, kinds[0]):
                self._begin(name, kinds[0])

    def _begin(self, name: str, kind: str) -> None:
        ends = self.get_publishers_info_by_topic(name)
        if not ends and is_own_type(kind):
            # a subscription appears before the first chunk, so record from now on
            ends = self.get_subscriptions_info_by_topic(name)
        if not ends:
            # the profile depends on the publisher; wait for one
            return
        try:
            message_type = message_class(kind)
        except (ImportError, AttributeError, ValueError):
            self._refused.add(name)
            self.get_logger().warning(f'not {self.does} {name}: {kind} is not installed')
            return
        self._recorded.add(name)
        self._add(bag_topic(name, kind, ends))
        depth = FRAMES_DEPTH if kind in (RAW_TYPE, COMPRESSED_TYPE) else SUBSCRIPTION_DEPTH
        self._subscribe(name, kind, message_type, strictest_profile(ends, depth))
        self.get_logger().info(f'{self.does} {name} ({kind})')

    def _subscribe(self, topic: str, kind: str, message_type: type, profile: QoSProfile) -> None:
        # a function, because rclpy inspects the parameters of a callback, also of a partial
        def deposit_all(data: bytes, info: MessageInfo) -> None:
            self._deposit_raw(topic, kind, data, info)
            # the executor takes one message a wait, and rests before each
            with subscription.handle:
                for _ in range(SUBSCRIPTION_DEPTH):
                    taken = subscription.handle.take_message(message_type, True)
                    if taken is None:
                        break
                    self._deposit_raw(topic, kind, *taken)

        callback: Callable[..., None] = deposit_all
        subscription = self.create_subscription(message_type, topic, callback, profile, raw=True)

    def _deposit_raw(self, topic: str, kind: str, data: bytes, info: MessageInfo) -> None:
        received_ns = info['received_timestamp'] or time.time_ns()
        sent_ns = info['source_timestamp'] or received_ns
        self.deposit(BagMessage(topic, kind, received_ns, data, sent_ns))

    def deposit(self, message: BagMessage) -> None:
        """Pass a received message on. Executor thread."""
        self.recording.put(message)


def connect_to_zenoh(settings: ZenohSettings) -> ZenohRecording:
    """Return a recording that has not begun. Raises UserError."""
    # a robot that is recorded over ROS 2 needs no eclipse-zenoh
    from lerobot_serve.tools.bags.zenoh_recording import ZenohRecording

    return ZenohRecording(settings)


def is_own_type(kind: str) -> bool:
    return kind.partition('/')[0] == PACKAGE


def message_class(kind: str) -> type:
    """Return the class of a message type. Raises ImportError, AttributeError and ValueError."""
    package, room, name = kind.split('/')
    module = import_module(f'{package}.{room}')
    if room == 'srv':
        event: type = getattr(module, name.removesuffix(TYPE_END)).Event
        return event
    message: type = getattr(module, name)
    return message


def bag_topic(name: str, kind: str, ends: list[TopicEndpointInfo]) -> BagTopic:
    """Return the description of a topic for a bag."""
    encoding, text = type_definition(kind, share_folder)
    type_hash = str(ends[0].topic_type_hash)
    if type_hash == INVALID or is_service_event(name, kind):
        # readers that do not know such events refuse the whole bag for a hash they cannot check
        type_hash = ''
    offered = tuple(offered_profile(end.qos_profile) for end in ends)
    return BagTopic(name, kind, encoding, text, offered, type_hash)


def share_folder(package: str) -> Path:
    """Return the folder of an installed package. Raises LookupError."""
    try:
        return Path(get_package_share_directory(package))
    except PackageNotFoundError as error:
        raise LookupError(package) from error


def strictest_profile(ends: list[TopicEndpointInfo], depth: int) -> QoSProfile:
    """Return the strictest profile that fits all publishers."""
    offered = [end.qos_profile for end in ends]
    reliable = all(each.reliability == ReliabilityPolicy.RELIABLE for each in offered)
    latched = all(each.durability == DurabilityPolicy.TRANSIENT_LOCAL for each in offered)
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def offered_profile(profile: QoSProfile) -> OfferedProfile:
    """Return a profile in the terms of rmw."""
    return OfferedProfile(
        history=_name(profile.history),
        depth=profile.depth,
        reliability=_name(profile.reliability),
        durability=_name(profile.durability),
        deadline=Duration.of_ns(profile.deadline.nanoseconds),
        lifespan=Duration.of_ns(profile.lifespan.nanoseconds),
        liveliness=_name(profile.liveliness),
        liveliness_lease_duration=Duration.of_ns(profile.liveliness_lease_duration.nanoseconds),
    )


def _name(policy: IntEnum) -> str:
    return policy.name.lower()
