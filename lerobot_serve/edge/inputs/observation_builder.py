# SPDX-License-Identifier: Apache-2.0
"""
Builds the observation of a request from deposited messages: checks, opens, scales and encodes
them, in the units and the camera names of the policy. The request thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace
import numpy as np

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.image_size import downscale
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.services.session import aspect_ratio_warning
from lerobot_serve.edge.inputs.latest import HistoryStep
from lerobot_serve.edge.inputs.monitor import InputMonitor
from lerobot_serve.edge.inputs.state_reader import MessageReader
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import RobotDescription, state_input_names

# camera name and identity of its raw message: a message may be in several steps
FrameKey = tuple[str, int]
FrameMessages = dict[FrameKey, bytes]


def frame_key(step: HistoryStep, camera: str) -> FrameKey:
    return camera, id(step.snapshot.values[camera])


def camera_messages(steps: tuple[HistoryStep, ...], cameras: Iterable[str]) -> FrameMessages:
    """Return the messages of the cameras, the newest first, each once."""
    names = tuple(cameras)
    return {
        frame_key(step, name): step.snapshot.values[name]
        for step in reversed(steps)
        for name in reversed(names)
    }


def encode_frames(
    steps: tuple[HistoryStep, ...],
    cameras: dict[str, str],
    frames: Mapping[FrameKey, FrameArray | Image],
    images: ImageCodecPool,
    codec: Codec,
    quality: int,
) -> tuple[Image, ...]:
    """
    Return the frames of all history steps, ordered by step, then camera.

    `cameras` maps the robot's camera names to the policy's; `frames` holds the pixels of each
    message, or an image that is sent unchanged. All frames are encoded in parallel, each once.
    Raises Malformed or Unencodable.
    """
    # name of the frame in error texts; the newest step that has it
    labels = {
        frame_key(step, name): f'{cameras[name]}, {step.steps_back} steps back'
        for step in steps
        for name in cameras
    }
    pixels = {labels[key]: f for key, f in frames.items() if not isinstance(f, Image)}
    encoded = _encoded(pixels, images, codec, quality)
    ready = {key: f if isinstance(f, Image) else encoded[labels[key]] for key, f in frames.items()}
    return tuple(
        replace(ready[frame_key(step, name)], name=cameras[name], steps_back=step.steps_back)
        for step in steps
        for name in cameras
    )


def _encoded(
    frames: dict[str, FrameArray], images: ImageCodecPool, codec: Codec, quality: int
) -> dict[str, Image]:
    """Encode frames; 16-bit depth is sent raw, since JPEG cannot hold it."""
    deep = {label: frame for label, frame in frames.items() if frame.dtype != np.uint8}
    flat = {label: frame for label, frame in frames.items() if label not in deep}
    encoded = dict(zip(flat, images.encode_all(flat, codec, quality), strict=True))
    return encoded | dict(zip(deep, images.encode_all(deep, Codec.RAW, quality), strict=True))


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
