# SPDX-License-Identifier: Apache-2.0
"""Robots of several kinds: what they tell, in which order, and how they are commanded."""

from __future__ import annotations

from functools import partial

from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image
import simplejpeg
from std_msgs.msg import Float64MultiArray
from support.nodes.edge_rig import EDGE, EdgeRig, LIMIT_S, Seen
from support.nodes.fake_server import FakeServer
from support.nodes.played_robot import ROBOT, robot_yaml

from lerobot_serve.contract.schema import Codec
from lerobot_serve.ros import qos
from lerobot_serve.ros.image_messages import image_from_frame
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

FRAME = np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3)
DRIVE = f'{ROBOT}/diff_drive_controller'
JPEG = simplejpeg.encode_jpeg(FRAME, quality=90)


def stay(request: object) -> np.ndarray:
    """Return a chunk that stays where the robot is."""
    return np.tile(request.state[-1], (60, 1))


def test_a_camera_that_compresses_is_passed_on_as_it_is(edge_rig):
    server = FakeServer(edge_rig.node, '/policy_server', EDGE, stay, chunk_size=60)
    camera = '{topic: camera, type: sensor_msgs/CompressedImage, max_age_s: 0.5}'
    edge_rig.robot = robot_yaml(cameras=f'{{observation.images.front: {camera}}}')
    edge_rig.start()
    edge_rig.wait(lambda: 'front' in edge_rig.seen.last.reason, 'the missing camera is named')
    publisher = edge_rig.node.create_publisher(CompressedImage, f'{ROBOT}/camera', qos.SENSOR)
    message = CompressedImage(format='jpeg', data=JPEG)
    edge_rig.node.create_timer(0.05, partial(publisher.publish, message))
    edge_rig.wait_for_play()
    (image,) = server.received[-1].images
    assert (image.name, image.codec) == ('observation.images.front', Codec.JPEG)
    assert bytes(image.data) == JPEG


class Base:
    """Two driven wheels without inertia: they drive as they are told."""

    def __init__(self, rig: EdgeRig) -> None:
        self.distance_m = 2.0
        self.told: list[TwistStamped] = []
        create = partial(rig.node.create_publisher, qos_profile=qos.SENSOR)
        self._odometry = create(Odometry, f'{DRIVE}/odom')
        self._distance = create(Float64MultiArray, f'{ROBOT}/front_distance')
        self._camera = create(Image, f'{ROBOT}/camera/image_raw')
        rig.node.create_subscription(
            TwistStamped, f'{DRIVE}/cmd_vel', self.told.append, qos.COMMAND
        )
        rig.node.create_timer(0.03, self._tell)

    @property
    def speed(self) -> tuple[float, float]:
        last = self.told[-1].twist if self.told else Twist()
        return round(last.linear.x, 4), round(last.angular.z, 4)

    def _tell(self) -> None:
        odometry = Odometry()
        odometry.twist.twist = self.told[-1].twist if self.told else Twist()
        self._odometry.publish(odometry)
        self._distance.publish(Float64MultiArray(data=[self.distance_m]))
        self._camera.publish(image_from_frame(FRAME, 'front'))


def test_a_base_drives_stops_before_what_is_near_and_when_nobody_answers(edge_rig, repository):
    edge_rig.robot = (repository / 'config' / 'robots' / 'diff_drive.yaml').read_text()
    base, answering = Base(edge_rig), [True]
    wanted = np.tile(np.float32([0.3, -0.2]), (40, 1))
    server = FakeServer(
        edge_rig.node,
        '/policy_server',
        EDGE,
        lambda _: wanted if answering[0] else None,
        chunk_size=len(wanted),
    )
    edge_rig.start(max_action_age_s=1.0, request_threshold_s=0.8)
    edge_rig.wait(lambda: base.speed == (0.3, -0.2), 'it drives')
    # it was not told to go faster than it may; the robot's own topic keeps the newest command only
    speeds = [action.commanded[0] for action in edge_rig.seen.executed if action.commanded]
    assert max(np.diff(speeds)) <= 0.5 / 20 + 1e-6

    def fast() -> list:
        return [request for request in server.received if request.state[0][0] > 0.1]

    edge_rig.wait(fast, 'it requests while it drives')
    near = fast()[0]
    assert near.state[0] == pytest.approx((near.state[0][0], near.state[0][1], 2.0))
    base.distance_m = 0.2
    edge_rig.wait(lambda: base.speed == (0.0, -0.2), 'the interlock holds it back')
    assert edge_rig.wait_for_cage_result(ExecutedAction.CLAMPED).reason == (
        'obstacle overrides linear.x'
    )
    base.distance_m = 2.0
    edge_rig.wait(lambda: base.speed == (0.3, -0.2), 'it drives on')
    answering[0] = False
    edge_rig.wait_for_rung(EdgeState.RUNG_ZERO)
    edge_rig.wait(lambda: base.speed == (0.0, 0.0), 'it stops')


def test_a_base_that_drives_is_told_to_rest_when_its_controller_ends(edge_rig, repository):
    edge_rig.robot = (repository / 'config' / 'robots' / 'diff_drive.yaml').read_text()
    base, wanted = Base(edge_rig), np.tile(np.float32([0.3, -0.2]), (40, 1))
    FakeServer(edge_rig.node, '/policy_server', EDGE, lambda _: wanted, chunk_size=len(wanted))
    process = edge_rig.start(max_action_age_s=1.0, request_threshold_s=0.8)
    edge_rig.wait(lambda: base.speed == (0.3, -0.2), 'it drives')
    process.terminate()
    edge_rig.wait(lambda: base.speed == (0.0, 0.0), 'it is told to rest')
    assert process.wait(LIMIT_S) == 0
    assert base.speed == (0.0, 0.0)


def test_a_second_robot_of_the_same_name_is_refused_and_harms_nobody(edge_rig):
    edge_rig.start_server(session_grace_s=5.0)
    edge_rig.start()
    edge_rig.wait_for_play()
    second = Seen(edge_rig.node, '/robot_2/edge_controller')
    edge_rig.start(namespace='/robot_2', client_id='robot_1')
    # it has inputs, too
    edge_rig.play_robot('/robot_2')
    edge_rig.wait(lambda: 'robot_1' in second.last.reason, 'the refusal is visible')
    edge_rig.wait_for_play(60)
    assert second.last.state == EdgeState.CONNECTING
    assert not second.executed
    assert edge_rig.seen.rungs == {EdgeState.RUNG_POLICY}
    assert len({action.session_epoch for action in edge_rig.seen.played}) == 1
