# SPDX-License-Identifier: Apache-2.0
"""The doctor before real topics and before a controller_manager with its traps."""

from __future__ import annotations

import json

import pytest
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image, JointState
from trajectory_msgs.msg import JointTrajectory
import yaml

from lerobot_serve.ros import qos
from lerobot_serve.tools.cli.main import main

JOINTS = [
    'shoulder_pan',
    'shoulder_lift',
    'elbow_flex',
    'wrist_flex',
    'wrist_roll',
    'gripper',
]
STATE, FRONT, WRIST = (
    'state from joint_states',
    'observation.images.front',
    'observation.images.wrist',
)
# far above what it takes to find each other on a busy machine
WAIT_S = '8'


class Driver:
    """A robot as its driver shows it; a test leaves out or changes what it likes."""

    def __init__(self, node: Node) -> None:
        self.node, self._sent = node, []
        node.create_timer(0.02, self._send)

    def publish(self, kind: type, topic: str, message: object = None) -> None:
        """Publish a message again and again; without one the topic is silent."""
        publisher = self.node.create_publisher(kind, topic, qos.SENSOR)
        if message is not None:
            self._sent.append((publisher, message))

    def _send(self) -> None:
        for publisher, message in self._sent:
            publisher.publish(message)

    def joints(self, names: list[str] = JOINTS) -> None:
        message = JointState(name=names, position=[0.0] * len(names))
        self.publish(JointState, '/joint_states', message)

    def camera(self, name: str) -> None:
        image = Image(height=2, width=2, encoding='rgb8', step=6, data=bytes(12))
        self.publish(Image, f'/camera/{name}/image_raw', image)


@pytest.fixture
def driver(node) -> Driver:
    return Driver(node)


@pytest.fixture
def robot_file(sim_arm_yaml, tmp_path):
    """The simulated arm, whose inputs may come as rarely as a busy machine lets them."""
    content = yaml.safe_load(sim_arm_yaml.read_text())
    for source in (*content['state'], *content['cameras'].values()):
        source['max_age_s'] = 30.0
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def control(runtime, node):
    """Starts a controller_manager and an arm_controller with these parameters."""

    def start(
        enforces: bool | None, takes: tuple[type, str] | None = None, **timeouts: float
    ) -> None:
        manager = Node('controller_manager', context=runtime.context)
        if enforces is not None:
            manager.declare_parameter('enforce_command_limits', enforces)
        manager.declare_parameter('arm_controller.type', 'a/Controller')
        manager.declare_parameter('not_loaded.type', 'a/Controller')
        arm = Node('arm_controller', context=runtime.context)
        for name, value in timeouts.items():
            arm.declare_parameter(name, value)
        if takes:
            arm.create_subscription(*takes, lambda _: None, qos.COMMAND)
        for made in (manager, arm):
            runtime.executor.add_node(made)

    return start


@pytest.fixture
def doctor(capsys):
    """Runs the verb; returns its exit status and its findings by group and name."""

    def run(*words: object) -> tuple[int, dict[tuple[str, str], dict]]:
        status = main(['doctor', '--json', *map(str, words)])
        told = json.loads(capsys.readouterr().out)
        return status, {
            (group['name'], finding['name']): finding
            for group in told['groups']
            for finding in group['findings']
        }

    return run


def verdicts(findings: dict, group: str) -> dict[str, str]:
    return {name: f['verdict'] for (of, name), f in findings.items() if of == group}


def test_a_robot_that_is_well(driver, robot_file, control, doctor):
    driver.joints()
    driver.camera('front')
    driver.camera('wrist')
    control(True, (JointTrajectory, '/joint_trajectory'), cmd_timeout=0.5)
    _, findings = doctor('--robot', robot_file, '--wait-s', WAIT_S)
    assert verdicts(findings, 'topics') == dict.fromkeys((STATE, FRONT, WRIST, 'commands'), 'ok')
    assert 'Hz' in findings['topics', FRONT]['found']
    assert '/arm_controller' in findings['topics', 'commands']['found']
    assert verdicts(findings, 'ros2_control') == {
        '/controller_manager enforce_command_limits': 'ok',
        '/arm_controller cmd_timeout': 'ok',
    }
    assert set(verdicts(findings, 'robot').values()) == {'ok'}
    assert findings['environment', 'middleware']['verdict'] == 'ok'
    assert findings['environment', 'large messages']['verdict'] == 'ok'


@pytest.mark.slow
def test_traps_and_topics_that_are_silent_or_of_another_type(driver, robot_file, control, doctor):
    driver.joints()
    driver.publish(Image, '/camera/front/image_raw')
    driver.publish(CompressedImage, '/camera/wrist/image_raw', CompressedImage())
    control(False, cmd_timeout=0.0)
    status, findings = doctor('--robot', robot_file, '--wait-s', WAIT_S)
    assert status == 1
    assert verdicts(findings, 'topics') == {
        STATE: 'ok',
        FRONT: 'failure',
        WRIST: 'failure',
        'commands': 'failure',
    }
    assert 'published by /test' in findings['topics', FRONT]['found']
    assert 'sensor_msgs/CompressedImage' in findings['topics', WRIST]['found']
    assert 'no subscriber on /joint_trajectory' in findings['topics', 'commands']['found']
    assert verdicts(findings, 'ros2_control') == {
        '/controller_manager enforce_command_limits': 'failure',
        # a robot of positions holds the last one
        '/arm_controller cmd_timeout': 'warning',
    }
    for finding in findings.values():
        assert bool(finding['remedy']) is (finding['verdict'] in ('failure', 'warning'))


@pytest.mark.slow
def test_joints_that_the_driver_does_not_know_in_a_namespace(node, driver, robot_file, doctor):
    message = JointState(name=['other'], position=[0.0])
    driver.publish(JointState, '/robot_7/joint_states', message)
    driver.publish(JointTrajectory, '/robot_7/joint_trajectory')
    durable = qos.STATE
    node.create_subscription(JointTrajectory, '/robot_7/joint_trajectory', lambda _: None, durable)
    status, findings = doctor('--robot', robot_file, '--namespace', 'robot_7', '--wait-s', WAIT_S)
    assert status == 1
    assert "no ['shoulder_pan'" in findings['topics', STATE]['found']
    assert 'no publisher on /robot_7/camera' in findings['topics', FRONT]['found']
    found = findings['topics', 'commands']['found']
    assert 'QoS of /test does not match' in found
    assert 'durability' in found.lower() or 'transient' in found.lower()
    assert '/test also publishes' in findings['topics', 'other command publishers']['found']


def test_a_manager_is_found_without_a_robot_file(control, doctor):
    control(None, cmd_vel_timeout=0.0)
    _, findings = doctor('--wait-s', WAIT_S)
    assert verdicts(findings, 'ros2_control') == {
        '/controller_manager enforce_command_limits': 'warning',
        # nobody knows whether this one holds or rolls
        '/arm_controller cmd_vel_timeout': 'failure',
    }


def test_a_manager_that_does_not_answer_is_told(runtime, node, doctor):
    """Nobody spins it."""
    manager = Node('controller_manager', context=runtime.context)
    try:
        _, findings = doctor('--wait-s', WAIT_S)
    finally:
        manager.destroy_node()
    finding = findings['ros2_control', '/controller_manager enforce_command_limits']
    assert finding['verdict'] == 'warning'
    assert 'no response' in finding['found']
