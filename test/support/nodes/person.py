# SPDX-License-Identifier: Apache-2.0
"""A person with a leader arm and a deadman, for the robot that a test plays."""

from __future__ import annotations

from sensor_msgs.msg import JointState, Joy

from lerobot_serve.ros import qos
from support.nodes.edge_rig import EdgeRig
from support.nodes.played_robot import HOME, JOINTS, ROBOT

LEADER, JOY = f'{ROBOT}/leader', f'{ROBOT}/joy'
# the line of a robot file
DEVICE = 'intervention: {topic: leader, timeout_s: 0.5, deadman: {topic: joy, button: 1}}\n'
POSE = tuple(position + 0.6 for position in HOME)


class Person:
    """Holds the deadman and moves a leader arm; the executor's thread publishes."""

    def __init__(self, rig: EdgeRig) -> None:
        self._rig, self.pose, self.is_held, self.moves = rig, POSE, True, True
        self._joints = rig.node.create_publisher(JointState, LEADER, qos.SENSOR)
        self._joy = rig.node.create_publisher(Joy, JOY, qos.SENSOR)
        rig.node.create_timer(0.02, self._publish)

    def _publish(self) -> None:
        if self.moves:
            self._joints.publish(JointState(name=list(JOINTS), position=list(self.pose)))
        self._joy.publish(Joy(buttons=[0, int(self.is_held)]))
