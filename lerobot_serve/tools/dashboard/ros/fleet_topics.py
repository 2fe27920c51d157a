# SPDX-License-Identifier: Apache-2.0
"""
Find robots, routers, servers and learners, and take their newest states. The poll thread.

The graph is read seldom, since its cost grows with all topics of a domain: at most once a second,
and for at most GRAPH_SHARE of a core, but at least every GRAPH_LIMIT_S. Messages are taken as
bytes from a node that no executor spins: the wait set of one costs 6 ms a spin with 400 topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
import time

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

from lerobot_serve.contract.records import EdgeState, LearnerState, RouterState, ServerStatus
from lerobot_serve.ros import qos
from lerobot_serve.tools.dashboard.document.fleet_document import Source
from lerobot_serve.tools.dashboard.document.fleet_recorder import LEARNER, ROBOT, ROUTER, SERVER
from lerobot_serve_interfaces import msg


class PolledTopic:
    """One subscription; one thread builds, polls and closes it."""

    def __init__(self, node: Node, kind: type, topic: str, profile: QoSProfile) -> None:
        self._node, self._kind, self.topic = node, kind, topic
        self._subscription: Subscription = node.create_subscription(
            kind,
            topic,
            _ignore,
            profile,
            raw=True,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        )
        # held in use, so that each take does not pay for it
        self._handle = self._subscription.handle
        self._handle.__enter__()
        self._take = self._handle.take_message

    def take(self) -> bytes | None:
        """Return the next message; with a depth of 1 it is the newest. None without one."""
        taken = self._take(self._kind, True)
        return taken[0] if taken else None

    def take_all(self, limit: int) -> Iterator[bytes]:
        """Yield the messages that are there, at most `limit`."""
        for _ in range(limit):
            raw = self.take()
            if raw is None:
                return
            yield raw

    def publisher_count(self) -> int:
        """Return how many publishers are matched."""
        count: int = self._handle.get_publisher_count()
        return count

    def close(self) -> None:
        self._handle.__exit__(None, None, None)
        self._node.destroy_subscription(self._subscription)


def _ignore(message: object) -> None:
    """Stand in for the callback, which no executor calls."""


PACKAGE = 'lerobot_serve_interfaces/msg'
GRAPH_PERIOD_S, GRAPH_LIMIT_S, GRAPH_SHARE = 1.0, 3.0, 0.01
# what publishes a state -> its record
TYPES: dict[str, type] = {
    ROBOT: EdgeState,
    ROUTER: RouterState,
    SERVER: ServerStatus,
    LEARNER: LearnerState,
}
# type of a topic -> its last word, and what publishes it
SOURCES = {
    f'{PACKAGE}/{kind.__name__}': ('/status' if source == SERVER else '/state', source)
    for source, kind in TYPES.items()
}
# of a router beside its state: last word, type, quality of service
CANARY, SHADOW, OUTCOME = 'canary', 'shadow_summary', 'outcome'
BESIDE_ROUTER_STATE = (
    (CANARY, msg.CanaryState, qos.STATE),
    (SHADOW, msg.ShadowSummary, qos.STATE),
    (OUTCOME, msg.EpisodeOutcome, qos.OUTCOME),
)
# new ones a turn: each costs some milliseconds
NEW_A_TURN, OUTCOMES_A_TURN = 20, 100
ROBOT_STATE = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.BEST_EFFORT
)


@dataclass(slots=True)
class WatchedSource:
    """One robot, router, server or learner, and the topics that are polled."""

    kind: str
    node: str
    state: PolledTopic
    others: dict[str, PolledTopic] = field(default_factory=dict)
    heard: Source = field(default_factory=Source)
    publishers: int = 0

    def close(self) -> None:
        for topic in (self.state, *self.others.values()):
            topic.close()


class FleetTopics:
    """All sources of a domain."""

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._clock = node, clock
        self._sources: dict[tuple[str, str], WatchedSource] = {}
        self._next_graph_s = 0.0

    @property
    def sources(self) -> Iterator[WatchedSource]:
        return iter(tuple(self._sources.values()))

    def discover(self) -> None:
        """Subscribe to new sources, if the graph is due."""
        begin_s = self._clock()
        if begin_s < self._next_graph_s:
            return
        # of this thread: on a busy machine it waits for a core, which costs nothing
        begin_cpu_s = time.thread_time()
        new = [found for found in self._found() if found[:2] not in self._sources]
        for kind, node, topic in new[:NEW_A_TURN]:
            self._sources[kind, node] = self._watched(kind, node, topic)
        wanted_s = (time.thread_time() - begin_cpu_s) / GRAPH_SHARE
        pause_s = min(GRAPH_LIMIT_S, max(GRAPH_PERIOD_S, wanted_s))
        self._next_graph_s = begin_s + (0.0 if len(new) > NEW_A_TURN else pause_s)

    def _found(self) -> Iterator[tuple[str, str, str]]:
        """Yield kind, node and topic of each source in the graph."""
        found = [
            (SOURCES[name][1], topic.removesuffix(SOURCES[name][0]), topic)
            for topic, types in self._node.get_topic_names_and_types()
            for name in types
            if name in SOURCES and topic.endswith(SOURCES[name][0])
        ]
        routers = {node for kind, node, _ in found if kind == ROUTER}
        for kind, node, topic in found:
            # a router publishes the status of a server, too
            is_router = kind == SERVER and node in routers
            # a topic may be there by a subscription alone, such as ours
            if not is_router and self._node.count_publishers(topic):
                yield kind, node, topic

    def _watched(self, kind: str, node: str, topic: str) -> WatchedSource:
        # robots publish several times a second, and are many: nothing is sent again for a viewer
        profile = ROBOT_STATE if kind == ROBOT else qos.STATE
        message = getattr(msg, TYPES[kind].__name__)
        source = WatchedSource(kind, node, PolledTopic(self._node, message, topic, profile))
        if kind == ROUTER:
            source.others = {
                word: PolledTopic(self._node, message, f'{node}/{word}', profile)
                for word, message, profile in BESIDE_ROUTER_STATE
            }
        return source

    def count_publishers(self) -> None:
        """Count the publishers of each source."""
        for source in self._sources.values():
            source.publishers = source.state.publisher_count()

    def forget(self, source: WatchedSource) -> None:
        """Remove a source that is gone."""
        del self._sources[source.kind, source.node]
        source.close()

    def close(self) -> None:
        for source in self.sources:
            self.forget(source)
