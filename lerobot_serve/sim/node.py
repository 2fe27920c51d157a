# SPDX-License-Identifier: Apache-2.0
"""
The node sim_robot: publishes joint states and two cameras, subscribes to joint commands.

The thread `simulate` owns arm and scene; the thread `commands` sets commands. At the end of an
attempt the node publishes an EpisodeOutcome and calls the reset of the edge controller, which
begins the next episode.
"""

from __future__ import annotations

from functools import partial
import time

from builtin_interfaces.msg import Time
from geometry_msgs.msg import PointStamped
import numpy as np
from rclpy.client import Client
from sensor_msgs.msg import Image, JointState, Joy
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.ros import qos
from lerobot_serve.ros.image_messages import image_from_frame
from lerobot_serve.ros.node.fixed_rate_loop import FixedRateLoop
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
from lerobot_serve.ros.subscriptions import decode_message, DedicatedSubscription
from lerobot_serve.sim.arm import Arm, JOINT_NAMES
from lerobot_serve.sim.correction import CorrectingPerson, Request
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.sim.scene import AttemptResult, ReachScene
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome

CAMERAS = ('front', 'wrist')
# how far the leader arm is ahead of the robot
LEAD_S = 0.05


class LeaderPublishers:
    """Publishes the leader arm: its joints, and the deadman as button 0 of a joystick."""

    def __init__(self, node: SteadyClockNode) -> None:
        self._joints = node.create_publisher(JointState, 'leader/joint_states', qos.SENSOR)
        self._joy = node.create_publisher(Joy, 'leader/joy', qos.SENSOR)

    def publish(self, pose: Float64Array, stamp: Time, *, is_held: bool) -> None:
        """Publish one pose and the state of the deadman."""
        joy = Joy(buttons=[int(is_held)])
        joy.header.stamp = stamp
        self._joy.publish(joy)
        joints = JointState(name=list(JOINT_NAMES), position=pose.tolist())
        joints.header.stamp = stamp
        self._joints.publish(joints)


class SimRobot(SteadyClockNode):
    """Connects the simulated arm to ROS; comments name the thread of each section."""

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('sim_robot', context=runtime.context)
        self._settings = NodeParameters(self, SimParameters)
        parameters = self._settings.current
        self._scene = ReachScene(
            Arm(),
            np.random.default_rng(parameters.seed),
            attempt_timeout_s=parameters.attempt_timeout_s,
            reach_m=parameters.reach_m,
            wrist_shift_m=parameters.wrist_camera_shift_m,
        )
        self._person = CorrectingPerson()
        self._command: Float64Array | None = None
        self._episode = EdgeState()
        self._rate = FixedRateLoop(int(1e9 / parameters.rate_hz))
        publish = partial(self.create_publisher, qos_overriding_options=qos.OVERRIDABLE)
        self._joints = publish(JointState, 'joint_states', qos.SENSOR)
        self._target = publish(PointStamped, 'target', qos.STATE)
        self._publish_target()
        self._images = {
            name: publish(Image, f'camera/{name}/image_raw', qos.SENSOR) for name in CAMERAS
        }
        topics = filter(None, ('episode_outcome', parameters.outcome_topic))
        self._outcomes = [publish(EpisodeOutcome, topic, qos.OUTCOME) for topic in topics]
        self._leader = LeaderPublishers(self) if parameters.leader else None
        # commands come at the rate of the control loop
        self._commands = DedicatedSubscription(
            self, JointTrajectory, 'joint_trajectory', qos.COMMAND, self._on_command
        )
        self._edge_reset = None
        self._interventions: dict[Request, Client] = {}
        if parameters.edge_controller:
            self._edge_reset = self.create_client(Trigger, f'{parameters.edge_controller}/reset')
            self._interventions = {
                each: self.create_client(Trigger, f'{parameters.edge_controller}/{each.value}')
                for each in (Request if self._leader else ())
            }
            self.create_subscription(
                EdgeState, f'{parameters.edge_controller}/state', self._on_edge_state, qos.STATE
            )
        self._settings.on_change(self._change)
        runtime.thread('commands', partial(self._commands.run, runtime.stop), self._commands.wake)
        runtime.thread('simulate', partial(self._simulate, runtime))

    # commands thread

    def _on_command(self, raw: bytes) -> None:
        try:
            message = decode_message(raw, JointTrajectory, self._commands.topic_name)
        except Malformed as error:
            self.get_logger().warning(str(error))
            return
        if not message.points:
            return
        position = dict(zip(message.joint_names, message.points[-1].positions, strict=False))
        current = self._scene.arm.positions
        self._command = np.array(
            [position.get(name, current[i]) for i, name in enumerate(JOINT_NAMES)]
        )

    # executor thread

    def _on_edge_state(self, message: EdgeState) -> None:
        self._episode = message

    def _change(self, parameters: SimParameters) -> None:
        self._scene.attempt_timeout_s = parameters.attempt_timeout_s
        self._scene.reach_m = parameters.reach_m

    # simulate thread

    def _simulate(self, runtime: NodeRuntime) -> None:
        step_s = 1 / self._settings.current.rate_hz
        while self._rate.wait(runtime.stop):
            self._scene.arm.step(self._command, step_s)
            outcome = self._scene.step(step_s)
            if outcome:
                self._end_attempt(outcome)
            self._publish_sensors()
            if self._interventions:
                self._intervene()

    def _publish_target(self) -> None:
        """Publish the position of the target for visualization; policies see it in images."""
        target = PointStamped()
        target.header.stamp = self.get_clock().now().to_msg()
        target.header.frame_id = 'base'
        target.point.x, target.point.y = self._scene.target_xy
        self._target.publish(target)

    def _publish_sensors(self) -> None:
        parameters, stamp = self._settings.current, self.get_clock().now().to_msg()
        joints = JointState(name=list(JOINT_NAMES), position=self._scene.arm.positions.tolist())
        joints.header.stamp = stamp
        self._joints.publish(joints)
        for name, publisher in self._images.items():
            frame = self._scene.render(name, parameters.image_height, parameters.image_width)
            image = image_from_frame(frame, f'camera_{name}')
            image.header.stamp = stamp
            publisher.publish(image)

        if self._leader:
            pose = self._scene.leader_pose(LEAD_S, parameters.leader_offset_rad)
            self._leader.publish(pose, stamp, is_held=parameters.leader_deadman)

    def _intervene(self) -> None:
        """Take over or hand back as the person at the leader arm wants it."""
        scene = self._scene
        found = self._person.request(
            time.monotonic(),
            scene.arm.hand(),
            is_reached=scene.distance_m <= scene.reach_m,
            person_commands=self._episode.intervention != EdgeState.INTERVENTION_NONE,
            corrects=self._settings.current.leader_corrects,
        )
        if found and self._interventions[found].service_is_ready():
            self._interventions[found].call_async(Trigger.Request())

    def _end_attempt(self, outcome: AttemptResult) -> None:
        kind = EpisodeOutcome.SUCCESS if outcome.success else EpisodeOutcome.FAILURE
        message = EpisodeOutcome(
            stamp=self.get_clock().now().to_msg(),
            client_id=self._episode.client_id,
            episode_id=self._episode.episode_id,
            outcome=kind,
            duration_s=outcome.duration_s,
            score=outcome.distance_m,
            text='score is the distance of the hand to the target in metres',
        )
        self._publish_target()
        self._person.begin_attempt(time.monotonic(), self._scene.arm.hand())
        for publisher in self._outcomes:
            publisher.publish(message)
        if self._edge_reset and self._edge_reset.service_is_ready():
            self._edge_reset.call_async(Trigger.Request())

    def destroy_node(self) -> None:
        """Destroy the node; called once its threads have ended."""
        self._commands.close()
        super().destroy_node()


def main(arguments: list[str] | None = None) -> int:
    """Run the executable `sim_robot`."""
    return run(SimRobot, arguments, NodeCommand('sim_robot', SimParameters))


if __name__ == '__main__':
    raise SystemExit(main())
