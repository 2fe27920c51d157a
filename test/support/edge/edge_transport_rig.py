# SPDX-License-Identifier: Apache-2.0
"""An outside with two servers as their clients see them, and the messages of a small robot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from msgspec import structs
import numpy as np
import simplejpeg

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.contract.data_path.message_parts import Image as WireImage
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.schema import Codec
from lerobot_serve.edge.inputs.latest import HistoryStep, InputSnapshot
from lerobot_serve.edge.inputs.monitor import InputMonitor
from lerobot_serve.edge.inputs.observation_builder import ObservationBuilder
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import (
    CameraInput,
    CommandOutput,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.session.transport.policy_server_transport import PolicyServerTransport
from lerobot_serve.edge.session_request import chunk_rate_warnings, make_session_request
from lerobot_serve.telemetry.log_throttle import Logs

ROBOT = RobotDescription(
    'arm',
    10.0,
    (StateSource('joints', 'sensor_msgs/JointState', ('pan', 'tilt'), 'position', ('p', 't'), 1),),
    (
        CameraInput('front', 'front/image', 'sensor_msgs/Image', 1.0),
        CameraInput('wrist', 'wrist/image', 'sensor_msgs/CompressedImage', 1.0),
    ),
    (ActionLimit('p', 'pan', Motion.POSITION, -1.0, 1.0, 0.1),),
    CommandOutput('std_msgs/Float64MultiArray', 'command'),
    rename_map={'wrist': 'cam_low', 'front': 'cam_high', 'p': 'pan.pos'},
)
STATE = 'state from joints'


class FakeClient:
    """One server as a client of it sees it; `error` is raised by every call."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.error: Exception | None = None
        self.refusal = ''
        self.wired = self.there = True
        self.cameras: tuple[CameraSpec, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self.extensions: tuple[SimpleNamespace, ...] = ()

    def is_available(self) -> bool:
        return self.there

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error

    def open(self, ask: OpenSessionRequest, timeout_s: float) -> SimpleNamespace:
        self._note('open', ask)
        return SimpleNamespace(
            session_id='s-1',
            policy='act@0',
            schema_version=1,
            observation_steps=2,
            observation_stride_steps=3,
            chunk_size=50,
            supports_rtc=True,
            cameras=self.cameras,
            warnings=self.warnings,
            extensions=self.extensions,
        )

    def close(self, ask: OpenSessionRequest, timeout_s: float) -> None:
        self._note('close', ask)

    def announce(self, request: object, on_refusal: Callable[[str], None]) -> None:
        self._note('announce', request)
        if self.refusal:
            on_refusal(self.refusal)

    def probe(self, on_reply: Callable[[], None]) -> None:
        self._note('probe')
        on_reply()

    def send(self, raw: bytes) -> None:
        self._note('send', raw)

    def session_request_for(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        return structs.replace(session_request, reply_topic='/robot/action_chunk')

    def wait_until_matched(self, timeout_s: float) -> bool:
        return self.wired


class OpenMessages:
    """Messages that are open already: a state is its values, a frame its pixels or its JPEG."""

    def state_vector(self, raws: list[np.ndarray], sources: tuple) -> np.ndarray:
        values = np.concatenate(raws)
        if len(values) != sum(len(source.fields) for source in sources):
            raise Malformed('missing_joint', 'no tilt')
        return values

    def rgb_frame(self, raw: np.ndarray | bytes, camera: CameraInput) -> np.ndarray:
        return simplejpeg.decode_jpeg(raw) if isinstance(raw, bytes) else raw

    def camera_jpeg(self, raw: np.ndarray | bytes, camera: CameraInput) -> WireImage | None:
        if not isinstance(raw, bytes):
            return None
        height, width, _, _ = simplejpeg.decode_jpeg_header(raw)
        return WireImage('', height, width, raw, Codec.JPEG)


class World:
    """An outside with two servers, and what was told to operators."""

    def __init__(self, robot: RobotDescription = ROBOT, **parameters: object) -> None:
        self.a, self.b, self.told, self.warned = FakeClient(), FakeClient(), [], []
        self.settings, self.robot = EdgeParameters(**parameters), robot
        monitor = InputMonitor(
            robot,
            EdgeParameters(camera_frozen_after_s=0.0),
            stamp_ns=lambda raw, topic: 0,
            now_ns=lambda: 0,
            mono_ns=lambda: 0,
            count_dropped=self.told.append,
        )
        self.observations = ObservationBuilder(
            robot,
            OpenMessages(),
            monitor,
            settings=lambda: self.settings,
            log=self.told.append,
        )
        self.transport = PolicyServerTransport(
            {'/a': self.a, '/b': self.b},
            robot,
            session_request=self.session_request,
            rate_warnings=lambda size: chunk_rate_warnings(self.settings, robot, size),
            logs=Logs(self.told.append, self.warned.append, self.warned.append, lambda: 0),
        )

    def session_request(self, epoch: int) -> OpenSessionRequest:
        return make_session_request(
            self.settings,
            self.robot,
            client_id='robot_1',
            instance=7,
            epoch=epoch,
            task='fold',
            cameras=self.observations.cameras,
        )

    def open_session(self, server: str, epoch: int) -> OpenSessionResponse:
        """Open a session, as a requester does."""
        agreement = self.transport.open_session(server, epoch)
        self.observations.begin_session(agreement.cameras)
        return agreement

    def observe(self, *moments: dict[str, bytes]) -> tuple[np.ndarray, dict[str, WireImage]]:
        """Return states, and the frames of the newest moment by name."""
        last = len(moments) - 1
        rows = [
            HistoryStep(InputSnapshot(values, 0), last - i) for i, values in enumerate(moments)
        ]
        states, frames = self.observations.read(tuple(rows))
        return states, {frame.name: frame for frame in frames if frame.steps_back == 0}


def pixels(height: int = 16, width: int = 24, value: int = 100) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def jpeg(frame: np.ndarray | None = None) -> bytes:
    return simplejpeg.encode_jpeg(pixels() if frame is None else frame, 80)


def seen(data: bytes | None = None, pan: float = 0.5) -> dict:
    """Return what inputs deposit: a state, a plain frame and a compressed one."""
    return {
        STATE: np.array([pan, 0.25]),
        'front': pixels(),
        'wrist': jpeg() if data is None else data,
    }


@contextmanager
def worlds() -> Iterator[Callable[..., World]]:
    """Give a function that makes worlds, whose threads end at the end."""
    made = []

    def make(*robot: RobotDescription, **parameters: object) -> World:
        made.append(World(*robot, **parameters))
        return made[-1]

    yield make
    for one in made:
        one.observations.close()
