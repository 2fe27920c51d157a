# SPDX-License-Identifier: Apache-2.0
"""The node that monitors the demo and calls the services of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geometry_msgs.msg import PointStamped
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState

from lerobot_serve.demo import steady_time
from lerobot_serve.demo.arm_animation import ArmFrame
from lerobot_serve.demo.process_specs import ROUTER
from lerobot_serve.demo.scoreboard import (
    CanaryStatus,
    EndedEpisode,
    ReplicaStatus,
    RobotStatus,
    Scoreboard,
    ShadowStatus,
    SlotStatus,
)
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.sim.arm import ELBOW, SHOULDER
from lerobot_serve_interfaces.msg import (
    CanaryState,
    EdgeState,
    EpisodeOutcome,
    ExecutedAction,
    ReplicaState,
    RouterState,
    RoutingDecision,
    ShadowDivergence,
    ShadowSummary,
    SlotState,
)

CALL_S, LOADING_S = 10.0, 60.0


def constant_names(message: type, *names: str) -> dict[int, str]:
    """Return constants of a message by value."""
    return {getattr(message, name): name for name in names}


EDGE_STATES = constant_names(
    EdgeState, 'CONNECTING', 'STREAMING', 'DEGRADED', 'STALLED', 'RECONNECTING', 'DEAD'
)
CANARY_STATES = constant_names(
    CanaryState, 'OFF', 'WAITING', 'RUNNING', 'UNDECIDED', 'PAUSED', 'PROMOTED', 'ROLLED_BACK'
)
SLOT_STATES = constant_names(
    SlotState, 'HEALTHY', 'DRAINED', 'PROBING', 'UNAVAILABLE', 'BARRED', 'UNQUALIFIED'
)
REPLICA_STATES = constant_names(
    ReplicaState, 'UNKNOWN', 'READY', 'UNHEALTHY', 'UNAVAILABLE', 'POLICY_MISMATCH'
)


class DemoMonitor(SteadyClockNode):
    """Callbacks run in the executor thread and deposit on the scoreboard."""

    def __init__(self, runtime: NodeRuntime, board: Scoreboard) -> None:
        super().__init__('demo', context=runtime.context)
        self.board = board
        for name in board.robots:
            self._watch_robot(name)
        for kind, topic, callback, profile in (
            (RouterState, 'state', self._on_router, qos.STATE),
            (CanaryState, 'canary', self._on_canary, qos.STATE),
            (ShadowSummary, 'shadow_summary', self._on_shadow, qos.STATE),
            (ShadowDivergence, 'shadow_divergence', self._on_divergence, qos.DECISIONS),
            (RoutingDecision, 'routing', self._on_routing, qos.DECISIONS),
        ):
            self.create_subscription(kind, f'{ROUTER}/{topic}', callback, profile)

    def _watch_robot(self, name: str) -> None:
        edge, robot = f'/{name}/edge_controller', self.board.robots[name]
        self.create_subscription(
            EdgeState, f'{edge}/state', lambda message: self._on_edge(robot, message), qos.STATE
        )
        self.create_subscription(
            ExecutedAction,
            f'{edge}/executed_action',
            lambda message: self._on_executed(robot, message),
            qos.EXECUTED_ACTION,
        )
        self.create_subscription(
            PointStamped,
            f'/{name}/target',
            lambda message: self._on_target(name, message),
            qos.STATE,
        )
        self.create_subscription(
            JointState,
            f'/{name}/joint_states',
            lambda message: self._on_joints(name, message),
            qos.SENSOR,
        )
        self.create_subscription(
            EpisodeOutcome,
            f'/{name}/episode_outcome',
            lambda message: self._on_outcome(name, message),
            qos.OUTCOME,
        )

    # executor thread

    def _on_edge(self, robot: RobotStatus, message: EdgeState) -> None:
        with self.board.lock:
            if message.chunks_accepted > robot.chunks:
                line = self.board.round_trips_ms.setdefault(message.policy, [])
                line.append((steady_time.now_s(), message.round_trip_ms))
            robot.set_state(EDGE_STATES.get(message.state, '?'), message.stalls)
            robot.reason, robot.policy, robot.slot = message.reason, message.policy, message.slot
            robot.server = message.server
            robot.chunks, robot.cage_trips = message.chunks_accepted, message.cage_trips
            robot.ticks, robot.control_steps_missed = (
                message.control_steps,
                message.control_steps_missed,
            )
            robot.drops = {drop.reason: drop.count for drop in message.dropped}
            robot.round_trip_ms = message.round_trip_ms
            robot.queue_s = message.queue_remaining_s
        self.board.changed.set()

    def _on_executed(self, robot: RobotStatus, message: ExecutedAction) -> None:
        now_s = message.stamp.sec + message.stamp.nanosec / 1e9
        with self.board.lock:
            robot.executed += 1
            # a rung of the ladder executes no action of a policy
            if message.rung == EdgeState.RUNG_POLICY:
                robot.add_action(now_s, message.episode_id, message.age_s)
                self.board.ages_ms.append(1e3 * message.age_s)

    def _on_target(self, name: str, message: PointStamped) -> None:
        self.board.targets[name] = message.point.x, message.point.y

    def _on_joints(self, name: str, message: JointState) -> None:
        target = self.board.targets.get(name)
        if target and len(message.position) > max(SHOULDER, ELBOW):
            pose = message.position[SHOULDER], message.position[ELBOW]
            self.board.add_arm_frame(name, ArmFrame(steady_time.now_s(), *pose, target))

    def _on_outcome(self, name: str, message: EpisodeOutcome) -> None:
        board = self.board
        if message.outcome not in (EpisodeOutcome.SUCCESS, EpisodeOutcome.FAILURE):
            return
        with board.lock:
            policy = board.policy_of_episode.get(message.episode_id, '')
            if not policy:
                # an attempt without a server is not attributed to a policy
                return
            good = message.outcome == EpisodeOutcome.SUCCESS
            board.ended_episodes.append(
                EndedEpisode(steady_time.now_s(), name, policy, good, message.duration_s)
            )
        board.changed.set()

    def _on_routing(self, message: RoutingDecision) -> None:
        board = self.board
        with board.lock:
            is_new = message.episode_id not in board.policy_of_episode
            board.policy_of_episode[message.episode_id] = message.policy
            if is_new and not message.sticky:
                board.placements.append((steady_time.now_s(), message.policy))

    def _on_router(self, message: RouterState) -> None:
        with self.board.lock:
            self.board.health = message.health
            self.board.slots = {slot.slot: slot_status(slot) for slot in message.slots}
            share = next((s.share_percent for s in message.slots if s.slot == 'b'), 0)
            self.board.shares.append((steady_time.now_s(), float(share)))
        self.board.changed.set()

    def _on_canary(self, message: CanaryState) -> None:
        before = self.board.canary
        now = CanaryStatus(
            state=CANARY_STATES.get(message.state, '?').lower(),
            share_percent=message.share_percent,
            step=message.step,
            steps=message.step_count,
            text=message.text,
            candidate=message.candidate_policy,
            champion=message.champion_policy,
            successes=message.candidate_successes,
            failures=message.candidate_failures,
        )
        self.board.canary = now
        if (before.state, before.share_percent) != (now.state, now.share_percent):
            share = f', {now.share_percent} %' if now.state in ('running', 'undecided') else ''
            state = now.state.replace('_', ' ')
            mark = f'{now.share_percent} %' if share else state
            self.board.add_event(steady_time.now_s(), f'canary {state}{share}', mark)

    def _on_shadow(self, message: ShadowSummary) -> None:
        self.board.shadow = ShadowStatus(
            policy=message.shadow_policy,
            live=message.live_policy,
            episodes=message.episodes,
            samples=message.samples,
            divergence=message.divergence_mean,
            trips=message.cage_trips,
            latency_ms_p50=message.latency_ms_p50,
            unmet_requirements=message.unmet_requirements,
        )
        self.board.changed.set()

    def _on_divergence(self, message: ShadowDivergence) -> None:
        with self.board.lock:
            self.board.divergences.append((steady_time.now_s(), message.divergence))

    # the main thread, while the executor spins

    def change_parameters(self, node: str, values: Mapping[str, object]) -> None:
        """Change parameters of a node. Raises UserError."""
        changes = [
            Parameter(name, value=value).to_parameter_msg() for name, value in values.items()
        ]
        reply = self._call(
            SetParameters,
            f'{node}/set_parameters',
            SetParameters.Request(parameters=changes),
            CALL_S,
        )
        for result in reply.results:
            if not result.successful:
                raise UserError(f'{node} rejected {", ".join(values)}: {result.reason}')

    def change_state(self, node: str, transition: str) -> None:
        """Request a lifecycle transition. Raises UserError."""
        request = ChangeState.Request()
        request.transition.label = transition
        if not self._call(ChangeState, f'{node}/change_state', request, LOADING_S).success:
            raise UserError(f'{node} could not {transition}; see its log')

    def _call(self, kind: type, service: str, request: Any, limit_s: float) -> Any:
        client = self.create_client(kind, service)
        try:
            return call_service(client, request, limit_s)
        except ServiceCallFailed as error:
            raise UserError(str(error)) from error
        finally:
            self.destroy_client(client)


def slot_status(slot: SlotState) -> SlotStatus:
    """Return the state of a slot from its message."""
    return SlotStatus(
        state=SLOT_STATES.get(slot.state, '?'),
        text=slot.text,
        policy=slot.policy,
        share_percent=slot.share_percent,
        episodes=slot.episodes,
        failures=slot.requests_failed,
        episodes_moved_away=slot.episodes_moved_away,
        replicas={
            each.server: ReplicaStatus(REPLICA_STATES.get(each.state, '?'), each.chunks)
            for each in slot.replicas
        },
    )
