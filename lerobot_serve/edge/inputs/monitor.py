# SPDX-License-Identifier: Apache-2.0
"""
Checks inputs that arrive in time: old stamps and frozen cameras.

The request thread checks before each request; other threads read `text`. Plain.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.inputs.frozen_cameras import FrozenCameraDetector
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.input_topics import input_sources

FROZEN = 'frozen_camera'


class InputMonitor:
    """
    `stamp_ns` reads the stamp of a message, `now_ns` is the clock to compare stamps with,
    `mono_ns` the monotonic clock. `count_dropped` counts drops by reason.
    """

    def __init__(
        self,
        robot: RobotDescription,
        frozen: FrozenCameraDetector,
        *,
        stop_on_frozen: bool,
        stamp_ns: Callable[[bytes, str], int],
        now_ns: Callable[[], int],
        mono_ns: Callable[[], int],
        count_dropped: Callable[[str], None],
    ) -> None:
        self._frozen, self._stop_on_frozen = frozen, stop_on_frozen
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
