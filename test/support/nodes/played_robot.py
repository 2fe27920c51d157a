# SPDX-License-Identifier: Apache-2.0
"""
A robot that the test plays, and the file that describes it.

It has no body: a timer of the test's node tells where it is, which is where it was last commanded
to be, with its joints in an order that nobody asked for.
"""

from __future__ import annotations

from rclpy.node import Node
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.ros import qos

ROBOT = '/robot_1'
STEP_S = 0.02
FPS = 30.0
JOINTS = tuple(f'joint_{i}' for i in range(6))
SHUFFLED = (3, 0, 5, 1, 4, 2)
# each joint elsewhere, so that none can be taken for another
HOME = (0.1, -0.2, 0.3, -0.4, 0.5, -0.6)


def robot_yaml(
    command: str = '{topic: command}',
    *,
    cameras: str = '{}',
    names: tuple[str, ...] = JOINTS,
    limits: str = 'min: -2.0, max: 2.0, max_step: 0.15',
) -> str:
    """Return the file of the robot; `names` are those of its actions, without their ending."""
    actions = '\n'.join(
        f'  {name}.pos: {{joint: {joint}, {limits}}}'
        for name, joint in zip(names, JOINTS, strict=True)
    )
    pose = ', '.join(f'{name}.pos: 0.0' for name in names)
    return (
        f'name: test_arm\nfps: {FPS:g}\n'
        f'state:\n- {{topic: joint_states, joints: [{", ".join(JOINTS)}], max_age_s: 0.5}}\n'
        f'cameras: {cameras}\nactions:\n{actions}\ncommand: {command}\nsafe_pose: {{{pose}}}\n'
    )


class Body:
    """The robot; everything happens in the executor's thread."""

    def __init__(self, node: Node, namespace: str = ROBOT) -> None:
        self.positions = dict(zip(JOINTS, HOME, strict=True))
        self.commands: list[JointTrajectory] = []
        self._joints = node.create_publisher(JointState, f'{namespace}/joint_states', qos.SENSOR)
        node.create_subscription(
            JointTrajectory, f'{namespace}/command', self._on_command, qos.COMMAND
        )
        # a test makes it larger for a slow driver
        self.steps_per_message, self._steps = 1, 0
        self._timer = node.create_timer(STEP_S, self._tell)

    def fall_silent(self) -> None:
        """Publish no more, for a test that publishes the joints itself."""
        self._timer.cancel()

    def _on_command(self, message: JointTrajectory) -> None:
        self.commands.append(message)
        told = zip(message.joint_names, message.points[-1].positions, strict=True)
        self.positions.update(told)

    def _tell(self) -> None:
        self._steps += 1
        if self._steps % self.steps_per_message:
            return
        names = [JOINTS[i] for i in SHUFFLED]
        told = JointState(name=names, position=[self.positions[name] for name in names])
        self._joints.publish(told)
