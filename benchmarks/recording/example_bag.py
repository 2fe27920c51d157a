# SPDX-License-Identifier: Apache-2.0
"""Bags of an edge and the simulated arm as `lerobot-serve record` makes them, without nodes."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from lerobot_serve.sim.arm import Arm, JOINT_NAMES
from lerobot_serve.sim.cameras import render
from lerobot_serve.sim.scene import expert_chunk
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.metadata import BagTopic
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction

SECOND_NS = 10**9
BEGIN_NS = 1_700_000_000 * SECOND_NS
FPS, STEP_NS = 30, SECOND_NS // 30
NODE, CLIENT = '/arm/edge', 'arm'
CAMERAS = ('front', 'wrist')
ACTIONS = ''.join(
    f'  {name}.pos: {{joint: {name}, min: -3, max: 3, max_step: 0.3}}\n' for name in JOINT_NAMES
)
ROBOT_FILE = f"""
name: sim_arm
fps: {FPS}
state:
  - topic: joint_states
    joints: [{', '.join(JOINT_NAMES)}]
    max_age_s: 0.25
cameras:
  observation.images.front: {{topic: camera/front/image_raw, max_age_s: 0.5}}
  observation.images.wrist: {{topic: camera/wrist/image_raw, max_age_s: 0.5}}
actions:
{ACTIONS}
command:
  topic: joint_trajectory
"""


@dataclass(slots=True)
class Step:
    """What one control step records; a test changes it before it is written."""

    number: int
    frames: dict[str, np.ndarray[Any, Any] | None]
    positions: np.ndarray[Any, Any] | None
    commanded: np.ndarray[Any, Any]
    action: ExecutedAction = field(default_factory=ExecutedAction)
    compressed: bool = False


Change = Callable[[Step], None]


class EdgeBag:
    """Writes a bag; `clock_ns` is the reception time of the next message."""

    def __init__(
        self, folder: Path, *, robot_file: str = ROBOT_FILE, size: tuple[int, int] = (48, 64)
    ) -> None:
        self.writer = BagWriter(folder, distro='jazzy')
        self.clock_ns, self.size = BEGIN_NS, size
        self.arm = Arm()
        self._ids: dict[str, int] = {}
        self._control_step = 0
        if robot_file:
            self.put(f'{NODE}/robot_file', String(data=robot_file))

    def put(self, topic: str, message: Any, *, sent_ns: int = 0) -> int:
        """Write a message; return its source timestamp."""
        package = type(message).__module__.partition('.')[0]
        kind = f'{package}/msg/{type(message).__name__}'
        self.writer.add_topic(BagTopic(topic, kind))
        sent_ns = sent_ns or self.clock_ns - 500_000
        data = serialize_message(message)
        self.writer.write(BagMessage(topic, kind, self.clock_ns, data, sent_ns))
        self.clock_ns += 1000
        return sent_ns

    def episode(
        self,
        episode_id: str,
        steps: int,
        *,
        outcome: int | None = EpisodeOutcome.SUCCESS,
        task: str = 'reach the disc',
        target_xy: tuple[float, float] = (0.25, 0.1),
        change: Change = lambda step: None,
        client: str = CLIENT,
        slot: str = 'a',
        policy: str = 'sha256:aaaa',
    ) -> None:
        """Write one episode of the expert, with its state and outcome."""
        self.put(f'{NODE}/state', EdgeState(client_id=client, episode_id=episode_id, task=task))
        for step in self._steps(steps, target_xy):
            step.action.client_id, step.action.episode_id = client, episode_id
            step.action.slot, step.action.policy = slot, policy
            change(step)
            self._write(step)
        self.put(f'{NODE}/state', EdgeState(client_id=client))
        if outcome is not None:
            message = EpisodeOutcome(client_id=client, episode_id=episode_id, outcome=outcome)
            self.put(f'{NODE}/episode_outcome', message)

    def _steps(self, count: int, target_xy: tuple[float, float]) -> Iterator[Step]:
        for number in range(count):
            positions = self.arm.positions
            command = expert_chunk(positions, target_xy, 1, 1 / FPS)[0]
            frames: dict[str, np.ndarray[Any, Any] | None] = {
                name: render(name, *self.size, positions, target_xy) for name in CAMERAS
            }
            action = ExecutedAction(
                control_step=self._control_step,
                seq=number // 10 + 1,
                chunk_row=number % 10,
                age_s=0.05,
                raw=command.tolist(),
            )
            self._control_step += 1
            yield Step(number, frames, positions, command, action)
            self.arm.step(command, 1 / FPS)

    def _write(self, step: Step) -> None:
        begin_ns = self.clock_ns
        if step.positions is not None:
            joints = JointState(name=list(JOINT_NAMES), position=step.positions.tolist())
            self._ids['state'] = self.put('/arm/joint_states', joints)
        for name, frame in step.frames.items():
            if frame is not None:
                self._ids[name] = self._camera(name, frame, step.compressed)
        self.put('/arm/joint_trajectory', trajectory(step.commanded))
        step.action.commanded = step.commanded.tolist()
        # as DDS has it: not to the nanosecond
        step.action.input_ids = [
            self._ids[name] + 1 if name in self._ids else 0 for name in ('state', *CAMERAS)
        ]
        step.action.stamp.sec, step.action.stamp.nanosec = divmod(begin_ns, SECOND_NS)
        self.put(f'{NODE}/executed_action', step.action)
        self.clock_ns = begin_ns + STEP_NS

    def _camera(self, name: str, frame: np.ndarray[Any, Any], compressed: bool) -> int:
        topic = f'/arm/camera/{name}/image_raw'
        if compressed:
            data = cv2.imencode('.jpg', frame[:, :, ::-1])[1].tobytes()
            message: Any = CompressedImage(format='jpeg', data=array.array('B', data))
            return self.put(f'{topic}/compressed', message)
        return self.put(topic, image(frame))

    def close(self) -> Path:
        self.writer.close()
        return self.writer.folder

    def kill(self) -> Path:
        """Leave the bag as a killed recorder does: without the end of its file."""
        self.writer.flush()
        self.writer.abort()
        return self.writer.folder


def image(frame: np.ndarray[Any, Any]) -> Image:
    """Return the image of a frame, by its number type."""
    encoding = {'uint8': 'rgb8', 'uint16': '16UC1', 'float32': '32FC1'}[str(frame.dtype)]
    height, width = frame.shape[:2]
    message = Image(height=height, width=width, encoding=encoding, step=frame.nbytes // height)
    message.data = array.array('B', frame.tobytes())
    return message


def trajectory(values: np.ndarray[Any, Any]) -> JointTrajectory:
    point = JointTrajectoryPoint(positions=values.tolist())
    return JointTrajectory(joint_names=list(JOINT_NAMES), points=[point])
