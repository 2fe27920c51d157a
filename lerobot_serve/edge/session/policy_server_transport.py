# SPDX-License-Identifier: Apache-2.0
"""
Transport over policy server clients: sessions, observations and requests. The request thread.

Plain: server clients and message readers are injected.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from lerobot_serve.edge.inputs.downscale import downscale
from lerobot_serve.edge.inputs.frame_encoding import encode_frames
from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.edge.inputs.monitor import InputMonitor
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot import unit_check
from lerobot_serve.edge.robot.description import CameraInput, RobotDescription
from lerobot_serve.edge.robot.unit_check import UnitFit
from lerobot_serve.edge.session.transport import SessionAgreement
from lerobot_serve.edge.wiring import chunk_rate_warnings, state_input_names
from lerobot_serve.wire import action_range
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.schema import Codec, Refusal
from lerobot_serve.wire.session import (
    aspect_ratio_warning,
    CameraSpec,
    ServerUnreachable,
    SessionRefused,
    SessionRequest,
)
from lerobot_serve_interfaces.srv import ResetEpisode

OPEN_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
DISCOVERY_TIMEOUT_S = 3.0


class ServerClient(Protocol):
    """Client of one server; implemented by ros.contract.session_client."""

    def is_there(self) -> bool: ...

    def open(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def close(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def probe(self, on_answer: Callable[[], None]) -> None: ...

    def announce(
        self, request: ResetEpisode.Request, on_refusal: Callable[[str], None]
    ) -> None: ...

    def send(self, raw: bytes) -> None: ...

    def wait_until_matched(self, publisher_count: Callable[[], int], timeout_s: float) -> bool: ...


class MessageReader(Protocol):
    """
    Decoder of input messages; implemented by edge.ros.sensor_messages. Each raises Malformed.
    """

    def state_vector(self, raws: list[bytes], sources: tuple) -> np.ndarray: ...

    def rgb_frame(self, raw: bytes, camera: CameraInput) -> np.ndarray: ...

    def stamp_ns(self, raw: bytes, topic: str) -> int: ...

    def camera_jpeg(self, raw: bytes, camera: CameraInput) -> Image | None: ...


class PolicyServerTransport:
    """
    The Transport of the node. `tell` and `warn` log; `asking` builds a session request from its
    epoch and reply topic. Each server has its own reply topic.
    """

    def __init__(
        self,
        clients: dict[str, ServerClient],
        robot: RobotDescription,
        messages: MessageReader,
        *,
        asking: Callable[[int, str], SessionRequest],
        settings: Callable[[], EdgeParameters],
        reply_topic: Callable[[str], str],
        publisher_count: Callable[[str], int],
        watched: InputMonitor,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._clients, self._robot, self._messages = clients, robot, messages
        self._state_units = robot.state_units
        self._asking, self._settings = asking, settings
        self._reply_topic, self._publisher_count = reply_topic, publisher_count
        self._watched, self._tell, self._warn = watched, tell, warn
        self._images = ImageCodecPool(settings().image_threads)
        self._cameras = {camera.name: camera for camera in robot.cameras}
        self._names = dict(zip(self._cameras, robot.camera_names, strict=True))
        self._sizes: dict[str, tuple[int, int]] = {}
        # by the policy's names: the size of each camera, and cameras not checked in this session
        self._seen: dict[str, CameraSpec] = {}
        self._unchecked_cameras: set[str] = set()
        self._client: ServerClient | None = None
        self._ask: SessionRequest | None = None

    def is_there(self, server: str) -> bool:
        """Return whether the services of this server are available."""
        return self._clients[server].is_there()

    def open_session(self, server: str, epoch: int) -> SessionAgreement:
        """Open a session. Raises SessionRefused or ServerUnreachable."""
        client, ask = self._clients[server], self._asking(epoch, self._reply_topic(server))
        ask = replace(ask, cameras=tuple(self._seen.get(c.name, c) for c in ask.cameras))
        reply = client.open(ask, OPEN_TIMEOUT_S)
        self._client, self._ask = client, ask
        self._check_units(server, reply)
        if not client.wait_until_matched(
            partial(self._publisher_count, server), DISCOVERY_TIMEOUT_S
        ):
            self._tell(
                f'{server}: topics not discovered within {DISCOVERY_TIMEOUT_S:g} s; '
                'first requests may be lost'
            )
        self._sizes = {camera.name: (camera.height, camera.width) for camera in reply.cameras}
        # the server has checked the other cameras
        self._unchecked_cameras = set(self._sizes) - set(self._seen)
        for text in (
            *reply.warnings,
            *chunk_rate_warnings(self._settings(), self._robot, reply.chunk_size),
            f'session {reply.session_id} opened with {server}, policy {reply.policy}',
        ):
            self._tell(text)
        return SessionAgreement(
            reply.schema_version,
            reply.observation_steps,
            reply.observation_stride_steps,
            reply.chunk_size,
            reply.supports_rtc,
            reply.policy,
        )

    def _check_units(self, server: str, reply: Any) -> None:
        """
        Compare the policy's action range with the limits. Close the session and raise
        SessionRefused for a range far beyond them in an undeclared unit.
        """
        try:
            pairs = [(each.key, bytes(each.value)) for each in reply.extensions]
            policy = action_range.find(pairs)
        except ValueError as error:
            self._tell(f'{server}: {error}; units not compared')
            return
        checked = unit_check.check_units(self._robot, policy)
        if checked.fit is UnitFit.GROSS:
            self.close_session()
            raise SessionRefused(Refusal.WRONG_POLICY, f'{reply.policy}: {checked.text}')
        if checked.text:
            self._warn(f'{reply.policy}: {checked.text}')

    def close_session(self) -> None:
        """Close the session; an unreachable server closes it by its own timeout."""
        client, self._client = self._client, None
        if client:
            with contextlib.suppress(ServerUnreachable):
                client.close(self._ask, CLOSE_TIMEOUT_S)

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Notify the server of a new episode without waiting for the reply."""
        request = ResetEpisode.Request(
            client_id=self._ask.client_id,
            session_epoch=epoch,
            episode=episode,
            episode_id=episode_id,
        )
        self._client.announce(
            request,
            lambda text: self._tell(
                f'server rejected the reset for episode {episode_id!r}: {text}'
            ),
        )

    def observe(self, moments: tuple[HistoryStep, ...]) -> tuple[np.ndarray, tuple[Image, ...]]:
        """Return states and images in the policy's units. Raises Malformed or Unencodable."""
        names, settings = state_input_names(self._robot), self._settings()
        self._watched.check_stamps(moments[-1].snapshot.values)
        states = [
            self._messages.state_vector([m.snapshot.values[n] for n in names], self._robot.state)
            for m in moments
        ]
        self._watched.check_frames(moments[-1].snapshot.values, states[-1])
        images = encode_frames(
            moments,
            self._names,
            self._images,
            Codec[settings.codec.upper()],
            settings.jpeg_quality,
            opened=self._opened,
        )
        return self._state_units.to_policy(np.stack(states)).astype(np.float32), images

    def _opened(self, name: str, raw: bytes) -> np.ndarray | Image:
        """Return pixels, or the camera's JPEG if it can be sent unchanged."""
        camera, settings = self._cameras[name], self._settings()
        size = self._sizes.get(self._names[name], (0, 0)) if settings.downscale else (0, 0)
        if settings.codec == 'jpeg' and size == (0, 0):
            ready = self._messages.camera_jpeg(raw, camera)
            if ready:
                self._record_camera_size(
                    self._names[name], ready.height, ready.width, ready.channels
                )
                return ready
        frame = self._messages.rgb_frame(raw, camera)
        self._record_camera_size(self._names[name], *frame.shape)
        return downscale(frame, *size)

    def _record_camera_size(self, name: str, height: int, width: int, channels: int) -> None:
        """Record the size of a camera for the next session, and check it once in this one."""
        self._seen[name] = CameraSpec(name, height, width, channels)
        if name in self._unchecked_cameras:
            self._unchecked_cameras.discard(name)
            if text := aspect_ratio_warning(name, (height, width), self._sizes[name]):
                self._tell(text)

    def send(self, raw: bytes) -> None:
        """Publish a request."""
        self._client.send(raw)

    def probe(self, on_answer: Callable[[], None]) -> None:
        """Call the status service of the current server; the executor receives the reply."""
        self._client.probe(on_answer)

    def close(self) -> None:
        """Stop the image threads."""
        self._images.close()
