# SPDX-License-Identifier: Apache-2.0
"""
Builds the observation of a request from deposited messages: checks, opens and encodes them, in the
units and the camera names of the policy. The request thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.image_size import downscale
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.services.session import aspect_ratio_warning
from lerobot_serve.edge.inputs.frame_encoding import (
    camera_messages,
    encode_frames,
)
from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.edge.inputs.monitor import InputMonitor
from lerobot_serve.edge.inputs.state_reader import MessageReader
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.input_topics import state_input_names


class ObservationBuilder:
    """Owns the threads that encode images; `log` receives warnings about cameras."""

    def __init__(
        self,
        robot: RobotDescription,
        messages: MessageReader,
        monitor: InputMonitor,
        *,
        settings: Callable[[], EdgeParameters],
        log: Callable[[str], object],
    ) -> None:
        self._messages, self._monitor, self._settings = messages, monitor, settings
        self._log = log
        self._sources, self._state_units = robot.state, robot.state_units
        self._state_names = state_input_names(robot)
        self._cameras = {camera.name: camera for camera in robot.cameras}
        self._names = dict(zip(self._cameras, robot.camera_names, strict=True))
        self._images = ImageCodecPool(settings().image_threads)
        # by the policy's names: the sizes that the server stated, those of the robot, and the
        # cameras to compare
        self._sizes: dict[str, tuple[int, int]] = {}
        self._robot_cameras: dict[str, CameraSpec] = {}
        self._unchecked_cameras: set[str] = set()

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        """The cameras for a session request, with their sizes once known."""
        names = self._names.values()
        return tuple(self._robot_cameras.get(name, CameraSpec(name)) for name in names)

    def begin_session(self, cameras: tuple[CameraSpec, ...]) -> None:
        """Use the frame sizes that the server stated."""
        self._sizes = {camera.name: (camera.height, camera.width) for camera in cameras}
        # the server has checked the other cameras
        self._unchecked_cameras = set(self._sizes) - set(self._robot_cameras)

    def read(self, steps: tuple[HistoryStep, ...]) -> tuple[Float32Array, tuple[Image, ...]]:
        """
        Return the states, one row per step, and the encoded images. Raises Malformed or
        Unencodable.
        """
        settings, newest = self._settings(), steps[-1].snapshot.values
        self._monitor.check_stamps(newest)
        states = [
            self._messages.state_vector(
                [step.snapshot.values[name] for name in self._state_names], self._sources
            )
            for step in steps
        ]
        self._monitor.check_frames(newest, states[-1])
        frames = {
            key: self._read_frame(key[0], raw)
            for key, raw in camera_messages(steps, self._names).items()
        }
        images = encode_frames(
            steps,
            self._names,
            frames,
            self._images,
            Codec.named(settings.codec),
            settings.jpeg_quality,
        )
        return self._state_units.to_policy(np.stack(states)).astype(np.float32), images

    def _read_frame(self, name: str, raw: bytes) -> FrameArray | Image:
        """Return pixels, or the camera's JPEG if it can be sent unchanged."""
        camera, settings = self._cameras[name], self._settings()
        size = self._sizes.get(self._names[name], (0, 0)) if settings.downscale else (0, 0)
        if settings.codec == 'jpeg' and size == (0, 0):
            ready = self._messages.camera_jpeg(raw, camera)
            if ready:
                self._record_camera(
                    CameraSpec(self._names[name], ready.height, ready.width, ready.channels)
                )
                return ready
        frame = self._messages.rgb_frame(raw, camera)
        self._record_camera(CameraSpec(self._names[name], *frame.shape))
        return downscale(frame, *size)

    def _record_camera(self, camera: CameraSpec) -> None:
        """Record the size of a camera for the next session, and check it once in this one."""
        self._robot_cameras[camera.name] = camera
        if camera.name in self._unchecked_cameras:
            self._unchecked_cameras.discard(camera.name)
            size = camera.height, camera.width
            if text := aspect_ratio_warning(camera.name, size, self._sizes[camera.name]):
                self._log(text)

    def close(self) -> None:
        """Stop the image threads."""
        self._images.close()
