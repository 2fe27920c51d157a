# SPDX-License-Identifier: Apache-2.0
"""
Maps recorded or received messages to what a viewer shows; the same for bags and live robots.

Imports neither ROS nor rerun. One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.names import ros_token
from lerobot_serve.contract.records import CanaryState, RouterState, ServerStatus, SlotState
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import closest_name
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CANARY_STATE,
    CHUNK,
    COMPRESSED_TYPE,
    DECISION,
    DIVERGENCE,
    EDGE_STATE,
    EXECUTED,
    OBSERVATION,
    OPEN_SESSION,
    OUTCOME,
    RAW_TYPE,
    read_open_session,
    ROUTER_STATE,
    SERVER_STATUS,
)
from lerobot_serve.tools.bags.request_pairs import is_robot_reply_topic
from lerobot_serve.tools.recorder.known_robots import KnownRobots
from lerobot_serve.tools.rerun_view.entries import (
    because,
    Count,
    Emit,
    Entry,
    IMAGES,
    Level,
    NODES,
    PartMapping,
    Path,
    path_part,
    Scalar,
    Times,
    Value,
    ViewLayout,
)
from lerobot_serve.tools.rerun_view.robot_mapping import recorded_frame, RobotMapping

GOOD = (ServerStatus.State.ACTIVE, ServerStatus.State.INACTIVE, ServerStatus.State.UNCONFIGURED)
Rollout, HEALTHY = CanaryState.State, SlotState.State.HEALTHY
CANARY_LEVELS = {Rollout.UNDECIDED: Level.WARN, Rollout.ROLLED_BACK: Level.ERROR}


class NodeMapping(PartMapping):
    """One policy server or router, by its full name."""

    def __init__(self, node: str, emit: Emit, count: Count) -> None:
        # a full name begins with a /
        super().__init__(NODES, node.strip('/'), emit, count)

    def on_status(self, status: ServerStatus, time_ns: int) -> None:
        times = self._times(status.stamp.ns, time_ns)
        if self._change('server', status.state.word, times):
            level = Level.INFO if status.state in GOOD else Level.WARN
            self._event(because(status.state.word, status.text), times, level)
        self._on_policy('policy', status.policy, times)
        for name in ('load', 'inference_ms_p50', 'inference_ms_p99'):
            self._emit((name,), Scalar(getattr(status, name)), times)

    def on_router(self, router: RouterState, time_ns: int) -> None:
        times = self._times(router.stamp.ns, time_ns)
        if self._change('router', router.health, times):
            level = Level.INFO if router.health == 'healthy' else Level.WARN
            self._event(because(router.health, router.text), times, level)
        self._emit(('sessions',), Scalar(router.sessions), times)
        for slot in router.slots:
            name = f'slot_{path_part(slot.slot)}'
            if self._change(name, slot.state.word, times):
                level = Level.INFO if slot.state == HEALTHY else Level.WARN
                text = because(f'slot {slot.slot} {slot.state.word}', slot.text)
                self._event(text, times, level)
            self._on_policy(f'{name}_policy', slot.policy, times)
            self._emit(('share_percent', name), Scalar(slot.share_percent), times)

    def on_canary(self, canary: CanaryState, time_ns: int) -> None:
        times = self._times(canary.stamp.ns, time_ns)
        if self._change('rollout', canary.state.word, times):
            level = CANARY_LEVELS.get(canary.state, Level.INFO)
            self._event(because(f'rollout {canary.state.word}', canary.text), times, level)
        if canary.state == Rollout.OFF:
            return
        self._emit(('evidence', 'not_worse_log10'), Scalar(canary.log10_evidence_not_worse), times)
        self._emit(('evidence', 'worse_log10'), Scalar(canary.log10_evidence_worse), times)

    def _on_policy(self, state: str, policy: str, times: Times) -> None:
        if self._change(state, policy, times) and policy:
            self._event(f'{state.replace("_", " ")}: {policy}', times)

    def _times(self, stamp_ns: int, time_ns: int) -> Times:
        return Times(time_ns, self._clock, stamp_ns)


ROBOTS_LIMIT, NODES_LIMIT, IMAGES_LIMIT = 32, 64, 64
# names for the error about a robot that is not there
NAMES_LIMIT, NAMES_SHOWN = 1000, 12
# year 2116; a plan may last longer
TIME_MAX_NS = 1 << 62
EDGE_NODE = '/edge_controller'

# type -> the method that shows it
OF_ROBOTS: dict[str, Callable[[RobotMapping, Any, int], None]] = {
    EXECUTED: RobotMapping.on_executed,
    EDGE_STATE: RobotMapping.on_state,
    DECISION: RobotMapping.on_decision,
    OUTCOME: RobotMapping.on_outcome,
    DIVERGENCE: RobotMapping.on_divergence,
}
OF_NODES: dict[str, Callable[[NodeMapping, Any, int], None]] = {
    SERVER_STATUS: NodeMapping.on_status,
    ROUTER_STATE: NodeMapping.on_router,
    CANARY_STATE: NodeMapping.on_canary,
}


class MessageMapping:
    """`layout` has the parts found so far, `not_shown` the count of what cannot be shown."""

    def __init__(self, robot: str = '') -> None:
        """Show the robot of this name, and all servers and routers; all robots without a name."""
        self._robot = robot
        self.layout = ViewLayout()
        self.not_shown: Counter[str] = Counter()
        self.shown_messages = 0
        # names of all robots that messages came from
        self.names: set[str] = set()
        self._robots: dict[str, RobotMapping] = {}
        self._nodes: dict[str, NodeMapping] = {}
        self._entries: list[Entry] = []
        # whose the topics of images are
        self._known = KnownRobots()

    def add(self, message: BagMessage) -> list[Entry]:
        """Return what a message of any type shows."""
        if not 0 <= message.stamp_ns <= TIME_MAX_NS:
            self._count('messages of an impossible time')
            return []
        try:
            self._dispatch(message)
        except Malformed:
            self._count(f'unreadable messages of type {message.type}')
        return self._take()

    def finish(self) -> list[Entry]:
        """Return what waited for a message that did not come."""
        for robot in self._robots.values():
            robot.finish()
        return self._take()

    @property
    def shows_all(self) -> bool:
        return not self._robot

    @property
    def has_robot(self) -> bool:
        """Whether there was a message of a robot that is shown."""
        return any(map(self.is_wanted, self.names))

    def check_robot(self) -> None:
        """Raise UserError if there was no message of the robot, with the nearest name."""
        if self._robot and not self.has_robot:
            near = closest_name(self._robot, self.names)
            found = sorted(self.names)
            more = f' and {len(found) - NAMES_SHOWN} more' if len(found) > NAMES_SHOWN else ''
            listed = ', '.join(found[:NAMES_SHOWN]) or 'none'
            hint = f'did you mean {near}? ' if near else ''
            raise UserError(
                f'there are no messages of a robot {self._robot!r}; {hint}found: {listed}{more}'
            )

    def _dispatch(self, message: BagMessage) -> None:
        """Pass a message to its robot or node. Raises Malformed."""
        kind, time_ns = message.type, message.stamp_ns
        self._known.learn(message)
        if kind in OF_ROBOTS:
            show, record = OF_ROBOTS[kind], message.record()
            self._show_robot(record.client_id, lambda robot: show(robot, record, time_ns))
        elif kind in OF_NODES:
            show_node = OF_NODES[kind]
            self._show_node(message, lambda node: show_node(node, message.record(), time_ns))
        elif kind == OPEN_SESSION:
            if opened := read_open_session(message.data):
                self._show_robot(opened.client_id, lambda robot: robot.on_session(opened))
        elif kind == OBSERVATION:
            self._on_observation(message)
        elif kind == CHUNK:
            self._on_chunk(message)
        elif kind in (RAW_TYPE, COMPRESSED_TYPE):
            self._on_image(message)
        else:
            self._count(f'messages of type {kind}')

    def _on_observation(self, message: BagMessage) -> None:
        # images are large: the name first
        client_id = read_envelope(message.data).client_id
        self._show_robot(
            client_id,
            lambda robot: robot.on_observation(
                wire_observation.decode(message.data), message.stamp_ns
            ),
        )

    def _on_chunk(self, message: BagMessage) -> None:
        client_id = read_envelope(message.data).client_id
        if not is_robot_reply_topic(message.topic):
            if self.is_wanted(client_id):
                self._count('replies to a router')
            return
        self._show_robot(
            client_id,
            lambda robot: robot.on_chunk(wire_chunk.decode(message.data), message.stamp_ns),
        )

    def _on_image(self, message: BagMessage) -> None:
        """Show a recorded image at the robots whose robot files name its topic, else by itself."""
        frame, times = recorded_frame(message), Times(message.stamp_ns)
        owners = self._known.owners(message)
        for node in owners or ():
            self._show_robot(
                self._known.client_id(node),
                lambda robot: robot.on_frame(message.topic, frame, times),
            )
        topic = path_part(message.topic)
        if owners is not None:
            return
        if topic not in self.layout.images and len(self.layout.images) >= IMAGES_LIMIT:
            self._count(f'images of topics beyond the first {IMAGES_LIMIT}')
            return
        self._emit((IMAGES, topic), frame, times)
        self.shown_messages += 1

    def _show_robot(self, client_id: str, show: Callable[[RobotMapping], None]) -> None:
        if len(self.names) < NAMES_LIMIT:
            self.names.add(client_id)
        if not self.is_wanted(client_id):
            return
        if client_id not in self._robots:
            if len(self._robots) >= ROBOTS_LIMIT:
                self._count(f'messages of robots beyond the first {ROBOTS_LIMIT}')
                return
            self._robots[client_id] = RobotMapping(client_id, self._emit, self._count)
        show(self._robots[client_id])
        self.shown_messages += 1

    def _show_node(self, message: BagMessage, show: Callable[[NodeMapping], None]) -> None:
        # ~/status, ~/state, ~/canary
        name = message.topic.rpartition('/')[0] or message.topic
        if name not in self._nodes:
            if len(self._nodes) >= NODES_LIMIT:
                self._count(f'messages of nodes beyond the first {NODES_LIMIT}')
                return
            self._nodes[name] = NodeMapping(name, self._emit, self._count)
        show(self._nodes[name])
        self.shown_messages += 1

    def is_wanted(self, client_id: str) -> bool:
        """Return whether a robot is shown, by its client_id or the name of its node."""
        given = self._robot
        token = given.strip('/').removesuffix(EDGE_NODE)
        return not given or given == client_id or token in (client_id, ros_token(client_id))

    def _emit(self, path: Path, value: Value, times: Times) -> None:
        self.layout.add(path)
        self._entries.append(Entry(path, value, times))

    def _count(self, what: str, count: int = 1) -> None:
        self.not_shown[what] += count

    def _take(self) -> list[Entry]:
        entries, self._entries = self._entries, []
        return entries
