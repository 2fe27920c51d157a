# SPDX-License-Identifier: Apache-2.0
"""The node that watches the robots of the demo."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from geometry_msgs.msg import PointStamped
from rclpy.subscription import Subscription
from sensor_msgs.msg import JointState

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.fleet_names import LEARNER, ROUTER
from lerobot_serve.demo.results.scoreboard import (
    ArmFrame,
    CORRECTED,
    edge_node_name,
    EndedEpisode,
    Scoreboard,
)
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.sim.arm import ELBOW, SHOULDER
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, LearnerState, RoutingDecision

# a joint that has turned so far has moved; encoders of the simulation have no noise
MOVED_RAD = 0.005


class DemoMonitor(SteadyClockNode):
    """Callbacks run in the executor thread and deposit on the scoreboard."""

    def __init__(self, runtime: NodeRuntime, board: Scoreboard) -> None:
        super().__init__('demo', context=runtime.context)
        self.board = board
        self._first_poses: dict[str, tuple[float, float]] = {}
        self._recorded: dict[str, Subscription] = {}
        # the newest state of the learner, in the acts that have one; an empty one before
        self.learner = LearnerState()
        for name in board.robots:
            self._watch_robot(name)
        self.create_subscription(
            RoutingDecision, f'{ROUTER}/routing', self._on_routing, qos.DECISIONS
        )

    def _watch_robot(self, name: str) -> None:
        topic, receive = f'{edge_node_name(name)}/state', partial(self._on_edge, name)
        self.create_subscription(EdgeState, topic, receive, qos.STATE, raw=True)
        for kind, topic, callback, profile in (
            (PointStamped, f'/{name}/target', self._on_target, qos.STATE),
            (EpisodeOutcome, f'/{name}/episode_outcome', self._on_outcome, qos.OUTCOME),
        ):
            self.create_subscription(kind, topic, partial(callback, name), profile)

    # main thread

    def record_arms(self, names: Iterable[str]) -> None:
        """
        Record the motion of these arms, and end the recording of others. Joint states come at the
        rate of the control loop, so they are received only while they are drawn.
        """
        wanted = set(names)
        for name in self._recorded.keys() - wanted:
            self.destroy_subscription(self._recorded.pop(name))
        for name in wanted - self._recorded.keys():
            self._recorded[name] = self.create_subscription(
                JointState,
                f'/{name}/joint_states',
                partial(self._on_joints, name),
                qos.SENSOR,
            )

    def watch_learner(self) -> None:
        """Receive the state of the learner."""
        self.create_subscription(LearnerState, f'{LEARNER}/state', self._on_learner, qos.STATE)

    def request_topics(self, servers: Iterable[str]) -> list[str]:
        """Return the topics on which a robot or the router sends requests over ROS 2."""
        topics = [f'{server}/observation' for server in servers]
        return [topic for topic in topics if self.count_publishers(topic)]

    # executor thread

    def _on_edge(self, name: str, raw: bytes) -> None:
        edge = decode(records.EdgeState, raw)
        with self.board.lock:
            self.board.robots[name] = RobotView(edge_node_name(name), edge)
            if edge.intervention is not records.EdgeState.Intervention.NONE:
                self.board.corrected_episodes.add(edge.episode_id)
        self.board.changed.set()

    def _on_learner(self, message: LearnerState) -> None:
        self.learner = message

    def _on_target(self, name: str, message: PointStamped) -> None:
        self.board.targets[name] = message.point.x, message.point.y

    def _on_joints(self, name: str, message: JointState) -> None:
        now_s, target = steady_time.now_s(), self.board.targets.get(name)
        if len(message.position) <= max(SHOULDER, ELBOW):
            return
        pose = message.position[SHOULDER], message.position[ELBOW]
        first = self._first_poses.setdefault(name, pose)
        if max(abs(now - then) for now, then in zip(pose, first, strict=True)) > MOVED_RAD:
            self.board.first_motions_s.setdefault(name, now_s)
        if target:
            self.board.add_arm_frame(name, ArmFrame(now_s, *pose, target))

    def _on_outcome(self, name: str, message: EpisodeOutcome) -> None:
        board = self.board
        if message.outcome not in (EpisodeOutcome.SUCCESS, EpisodeOutcome.FAILURE):
            return
        with board.lock:
            policy = board.policy_of_episode.get(message.episode_id, '')
            if message.episode_id in board.corrected_episodes:
                policy = CORRECTED
        # an attempt without a server is not attributed to a policy
        if policy:
            good = message.outcome == EpisodeOutcome.SUCCESS
            board.add_outcome(
                EndedEpisode(steady_time.now_s(), name, policy, good, message.duration_s)
            )

    def _on_routing(self, message: RoutingDecision) -> None:
        board = self.board
        with board.lock:
            is_new = message.episode_id not in board.policy_of_episode
            board.policy_of_episode[message.episode_id] = message.policy
            if is_new and not message.sticky:
                board.placements.append((steady_time.now_s(), message.policy))
