# SPDX-License-Identifier: Apache-2.0
"""
Checks inputs that arrive in time: old stamps, and cameras that repeat one frame while the robot
moves.

A hanging driver may keep publishing its last frame: no input is late, and the policy uses an old
image. Two frames of a real sensor never have equal bytes. A simulated camera repeats frames while
the robot stands, hence the second condition. The request thread checks before each request; other
threads read `text`. Plain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import input_sources, RobotDescription

# in sensor_msgs/Image and CompressedImage the encapsulation and the stamp come first
STAMP_END_BYTE = 12
# a slow camera is not frozen: at least this many messages must have the same frame
MIN_REPEATS = 5
# in the units of the state: above the noise of a sensor, below any motion of a task
MIN_MOTION = 0.01


@dataclass(slots=True)
class _Frame:
    """
    The latest message of a camera, and the time and robot state of its first identical frame.
    """

    raw: bytes
    since_ns: int
    state: Float64Array
    repeats: int = 0
    has_moved: bool = False


class FrozenCameraDetector:
    """Checks the newest frames; `after_s` 0 disables it."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self._frames: dict[str, _Frame] = {}

    def poll(self, now_ns: int, state: Float64Array, raws: dict[str, bytes]) -> list[str]:
        """Process the newest message of each camera; return the frozen ones."""
        if not self.after_s:
            return []
        return [name for name, raw in raws.items() if self._is_frozen(name, raw, now_ns, state)]

    def _is_frozen(self, name: str, raw: bytes, now_ns: int, state: Float64Array) -> bool:
        known = self._frames.get(name)
        if known is None or not (raw is known.raw or is_same_frame(raw, known.raw)):
            self._frames[name] = _Frame(raw, now_ns, state)
            return False
        if raw is not known.raw:
            known.repeats += 1
            known.raw = raw
        known.has_moved |= bool(np.abs(state - known.state).max(initial=0.0) > MIN_MOTION)
        is_long = now_ns - known.since_ns >= 1e9 * self.after_s
        return is_long and known.repeats >= MIN_REPEATS and known.has_moved


def is_same_frame(one: bytes, other: bytes) -> bool:
    """Return whether two messages differ only in their stamps."""
    if len(one) != len(other):
        return False
    if len(one) <= STAMP_END_BYTE:
        return one == other
    first, second = (np.frombuffer(raw, np.uint8, offset=STAMP_END_BYTE) for raw in (one, other))
    return np.array_equal(first, second)


FROZEN = 'frozen_camera'


class InputMonitor:
    """
    `stamp_ns` reads the stamp of a message, `now_ns` is the clock to compare stamps with,
    `mono_ns` the monotonic clock. `count_dropped` counts drops by reason.
    """

    def __init__(
        self,
        robot: RobotDescription,
        parameters: EdgeParameters,
        *,
        stamp_ns: Callable[[bytes, str], int],
        now_ns: Callable[[], int],
        mono_ns: Callable[[], int],
        count_dropped: Callable[[str], None],
    ) -> None:
        self._frozen = FrozenCameraDetector(parameters.camera_frozen_after_s)
        self._stop_on_frozen = parameters.on_frozen_camera == 'stop_observations'
        self._stamp_ns, self._now_ns, self._mono_ns = stamp_ns, now_ns, mono_ns
        self._count_dropped = count_dropped
        self._cameras = {camera.name: camera.topic for camera in robot.cameras}
        self._bounds = [
            (name, one.topic, one.max_stamp_age_s)
            for name, one in input_sources(robot)
            if one.max_stamp_age_s
        ]
        # current alarm for operators
        self.text = ''

    def check_stamps(self, raws: dict[str, bytes]) -> None:
        """Raise Malformed for a message whose stamp exceeds its bound."""
        for name, topic, bound_s in self._bounds:
            age_s = (self._now_ns() - self._stamp_ns(raws[name], topic)) / 1e9
            if abs(age_s) > bound_s:
                where = 'ago' if age_s > 0 else 'in the future'
                raise Malformed(
                    'old_stamp',
                    f'{topic}: stamped {abs(age_s):.2f} s {where}; max_stamp_age_s is '
                    f'{bound_s:g}. Check its driver and the clock of its machine',
                )

    def check_frames(self, raws: dict[str, bytes], state: Float64Array) -> None:
        """Update the frozen camera alarm. Raises Malformed if it must stop observations."""
        frames = {name: raws[name] for name in self._cameras}
        frozen = self._frozen.poll(self._mono_ns(), state, frames)
        if not frozen:
            self.text = ''
            return
        topics = ', '.join(self._cameras[name] for name in frozen)
        self.text = (
            f'{topics}: identical frames for {self._frozen.after_s:g} s or more while the robot '
            'moves. Check the camera and its driver'
        )
        if self._stop_on_frozen:
            raise Malformed(FROZEN, self.text)
        self._count_dropped(FROZEN)
