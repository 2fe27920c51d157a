# SPDX-License-Identifier: Apache-2.0
"""
The robot files for ros2_control, tried against nodes that take what Jazzy's controllers take: the
documented topics below their own name, with the documented types.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from geometry_msgs.msg import TwistStamped
from nav_msgs.msg import Odometry
import numpy as np
import pytest
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image, JointState
import simplejpeg
from std_msgs.msg import Float64MultiArray
from support.nodes.edge_rig import EDGE
from support.nodes.fake_server import FakeServer
from support.nodes.played_robot import ROBOT
from support.paths import REPOSITORY
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.edge.robot.file import load
from lerobot_serve.ros import qos
from lerobot_serve.ros.image_messages import image_from_frame

FILES = REPOSITORY / 'config' / 'robots'
FRAME = np.zeros((48, 64, 3), np.uint8)
HOME = (0.1, -0.2, 0.3, -0.4, 0.5, 0.6)
# robot file -> name of the controller, its topic below that name, type
CONTROLLERS = {
    'so101': ('forward_position_controller', 'commands', Float64MultiArray),
    'so101_trajectory': ('joint_trajectory_controller', 'joint_trajectory', JointTrajectory),
    'diff_drive': ('diff_drive_controller', 'cmd_vel', TwistStamped),
}


class Driver:
    """The controller of a file, and what the robot's other nodes publish."""

    def __init__(self, runtime: Any, node: Node, name: str) -> None:
        controller, topic, kind = CONTROLLERS[name]
        self.heard: list[Any] = []
        self.controller = Node(controller, namespace=ROBOT, context=runtime.context)
        # as a controller does it: its own system default profile
        self.controller.create_subscription(kind, f'~/{topic}', self.heard.append, 10)
        runtime.executor.add_node(self.controller)
        self._node = node
        if name == 'diff_drive':
            self._publish(self.controller, '~/odom', Odometry())
            self._publish(node, f'{ROBOT}/front_distance', Float64MultiArray(data=[2.0]))
            self._publish(node, f'{ROBOT}/camera/image_raw', image_from_frame(FRAME, 'front'))
            return
        joints = list(load_joints(name))
        self._publish(node, f'{ROBOT}/joint_states', JointState(name=joints, position=list(HOME)))
        jpeg = CompressedImage(format='jpeg', data=simplejpeg.encode_jpeg(FRAME))
        for camera in ('front', 'wrist'):
            self._publish(node, f'{ROBOT}/camera/{camera}/image_raw/compressed', jpeg)

    def _publish(self, node: Node, topic: str, message: Image) -> None:
        publisher = node.create_publisher(type(message), topic, qos.SENSOR)
        self._node.create_timer(0.03, partial(publisher.publish, message))


def load_joints(name: str) -> tuple[str, ...]:
    return load(FILES / f'{name}.yaml').action_joints


@pytest.mark.slow
@pytest.mark.parametrize('name', CONTROLLERS)
def test_the_controller_hears_what_a_policy_says(name, edge_rig, runtime):
    # other joints on the same topic would hide those of the driver, by chance for long
    edge_rig.body.fall_silent()
    edge_rig.robot = (FILES / f'{name}.yaml').read_text()
    driver = Driver(runtime, edge_rig.node, name)
    wanted = np.array([(0.2, -0.1) if name == 'diff_drive' else HOME], np.float32)
    chunk = np.tile(wanted, (60, 1))
    FakeServer(edge_rig.node, '/policy_server', EDGE, lambda _: chunk, chunk_size=60)
    edge_rig.start()
    edge_rig.wait(lambda: len(driver.heard) > 20, 'the controller hears commands')
    last = driver.heard[-1]
    if name == 'so101':
        assert list(last.data) == pytest.approx(HOME)
    elif name == 'so101_trajectory':
        assert tuple(last.joint_names) == load_joints(name)
        (point,) = last.points
        assert list(point.positions) == pytest.approx(HOME)
        # a zero velocity at the end is what the controller asks for; none given means that
        assert not point.velocities
        assert point.time_from_start.nanosec == pytest.approx(1e9 / 30, abs=1)
        # an empty stamp begins when it arrives
        assert (last.header.stamp.sec, last.header.stamp.nanosec) == (0, 0)
    else:
        edge_rig.wait(lambda: driver.heard[-1].twist.linear.x == pytest.approx(0.2), 'it drives')
        assert driver.heard[-1].header.frame_id == 'base_link'
        # its age is told by the stamp
        assert driver.heard[-1].header.stamp.sec > 0
