# SPDX-License-Identifier: Apache-2.0
"""
The node recorder: the topics of the graph in, a bag out.

The executor's thread looks for topics and deposits what it hears, unopened; the thread `writing`
owns the bag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
import os
from pathlib import Path
import time
from typing import Any

from ament_index_python.packages import get_package_share_directory, PackageNotFoundError
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.topic_endpoint_info import TopicEndpointInfo

from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.bags.message import PACKAGE
from lerobot_serve.tools.bags.recording.metadata import BagTopic
from lerobot_serve.tools.bags.recording.qos_profiles import INFINITE_NS, OfferedProfile
from lerobot_serve.tools.bags.recording.type_definitions import type_definition
from lerobot_serve.tools.bags.recording.write_queue import ReceivedMessage, WriteQueue
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.bags.service_events import is_service_event, TYPE_END

GRAPH_POLL_S = 0.2
# as the most that any of our publishers keeps: a recorder is behind for moments only
SUBSCRIPTION_DEPTH = 1024
DIAGNOSTICS = '/diagnostics'
INVALID = 'INVALID'


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Which topics are recorded: these, all, or, where neither is said, those of this package."""

    topics: frozenset[str] = frozenset()
    all: bool = False

    def takes(self, topic: str, kind: str) -> bool:
        if self.topics:
            return topic in self.topics
        is_hidden = any(token.startswith('_') for token in topic.split('/'))
        if is_hidden and not is_service_event(topic, kind):
            return False
        return self.all or is_own_type(kind) or topic == DIAGNOSTICS


class BagRecorderNode(SteadyClockNode):
    """See the module. Built in the main thread."""

    sim_time_refusal = 'a bag holds the times at which messages were sent and received'

    def __init__(
        self, runtime: NodeRuntime, folder: Path, wanted: TopicFilter, **limits: Any
    ) -> None:
        """Raises BagError; `limits` are those of Recording."""
        writer = BagWriter(folder, distro=os.environ.get('ROS_DISTRO', ''))
        super().__init__('recorder', context=runtime.context, enable_rosout=False)
        self._wanted, self.folder = wanted, folder
        self.recording = WriteQueue(writer, on_end=runtime.stop_requested.set, **limits)
        self.contents = writer.contents
        self._recorded: set[str] = set()
        self._refused: set[str] = set()
        thread = runtime.thread('writing', self.recording.run, self.recording.close)
        runtime.before_shutdown(lambda: (self.recording.close(), thread.join()))
        self.create_timer(GRAPH_POLL_S, self._look)
        self._look()

    def _look(self) -> None:
        """Begin with topics that are new."""
        for name, kinds in self.get_topic_names_and_types():
            fits = len(kinds) == 1 and self._wanted.takes(name, kinds[0])
            if fits and name not in self._recorded | self._refused:
                self._begin(name, kinds[0])

    def _begin(self, name: str, kind: str) -> None:
        ends = self.get_publishers_info_by_topic(name)
        if not ends and is_own_type(kind):
            # who listens already will be answered: the first chunk must not be missed
            ends = self.get_subscriptions_info_by_topic(name)
        if not ends:
            # whoever publishes decides how; it will come
            return
        try:
            message_type = message_class(kind)
        except (ImportError, AttributeError, ValueError):
            self._refused.add(name)
            self.get_logger().warning(f'{name} is not recorded: {kind} is not installed here')
            return
        self._recorded.add(name)
        self.recording.add(bag_topic(name, kind, ends))
        self.create_subscription(
            message_type, name, self._deposit_callback(name), strictest_profile(ends), raw=True
        )
        self.get_logger().info(f'recording {name} ({kind})')

    def _deposit_callback(self, topic: str) -> Callable[[bytes, dict], None]:
        # rclpy looks at the parameters of a callback and would not see those of a partial
        def deposit(data: bytes, about: dict) -> None:
            received_ns = about['received_timestamp'] or time.time_ns()
            sent_ns = about['source_timestamp'] or received_ns
            self.recording.put(ReceivedMessage(topic, data, received_ns, sent_ns))

        return deposit


def is_own_type(kind: str) -> bool:
    return kind.partition('/')[0] == PACKAGE


def message_class(kind: str) -> type:
    """Return a message's class. Raises ImportError, AttributeError and ValueError."""
    package, room, name = kind.split('/')
    module = import_module(f'{package}.{room}')
    if room == 'srv':
        return getattr(module, name.removesuffix(TYPE_END)).Event
    return getattr(module, name)


def bag_topic(name: str, kind: str, ends: list[TopicEndpointInfo]) -> BagTopic:
    """Return what a bag says of a topic."""
    encoding, text = type_definition(kind, share_folder)
    type_hash = str(ends[0].topic_type_hash)
    if type_hash == INVALID or is_service_event(name, kind):
        # readers that do not know such events refuse the whole bag over a hash they cannot check
        type_hash = ''
    offered = tuple(offered_profile(end.qos_profile) for end in ends)
    return BagTopic(name, kind, encoding, text, offered, type_hash)


def share_folder(package: str) -> Path:
    """Return the folder of an installed package. Raises LookupError."""
    try:
        return Path(get_package_share_directory(package))
    except PackageNotFoundError as error:
        raise LookupError(package) from error


def strictest_profile(ends: list[TopicEndpointInfo]) -> QoSProfile:
    """Return the most that all of them have."""
    offered = [end.qos_profile for end in ends]
    reliable = all(each.reliability == ReliabilityPolicy.RELIABLE for each in offered)
    latched = all(each.durability == DurabilityPolicy.TRANSIENT_LOCAL for each in offered)
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=SUBSCRIPTION_DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def offered_profile(profile: QoSProfile) -> OfferedProfile:
    """Return a profile in the words of rmw."""
    return OfferedProfile(
        _word(profile.history),
        profile.depth,
        _word(profile.reliability),
        _word(profile.durability),
        _nanoseconds(profile.deadline),
        _nanoseconds(profile.lifespan),
        _word(profile.liveliness),
        _nanoseconds(profile.liveliness_lease_duration),
    )


def _word(policy: Any) -> str:
    return policy.name.lower()


def _nanoseconds(duration: Duration) -> int:
    return min(duration.nanoseconds, INFINITE_NS)
