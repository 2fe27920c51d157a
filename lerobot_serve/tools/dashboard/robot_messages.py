# SPDX-License-Identifier: Apache-2.0
"""
Turn messages of one robot into what its window shows, and keep its last requests, whose images are
shown as JPEG. `take` and the callbacks of the thread `robots`; `on_request` and reading requests
any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
import threading

import numpy as np
import simplejpeg

from lerobot_serve.arrays import FrameArray, Uint8Array
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import CHANNEL_TYPES, check_jpeg
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.contract.schema import Codec, Status
from lerobot_serve.tools.bags.message import read_open_session
from lerobot_serve.tools.dashboard.document.fleet_document import bounded, rounded
from lerobot_serve.tools.dashboard.robot_window import (
    Executed,
    Heard,
    RobotEvent,
    series,
    ShownPlan,
)

KEPT, KEPT_BYTES = 4, 64 << 20
QUALITY = 85


class LastRequests:
    """The newest requests, by their number; bounded in count and bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._newest: int | None = None

    def put(self, seq: int, raw: bytes) -> None:
        """Keep a request."""
        with self._lock:
            self._kept[seq], self._newest = raw, seq
            self._kept.move_to_end(seq)
            while len(self._kept) > KEPT or (
                len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES
            ):
                self._kept.popitem(last=False)

    def newest(self) -> tuple[int, bytes] | None:
        with self._lock:
            return None if self._newest is None else (self._newest, self._kept[self._newest])

    def get(self, seq: int) -> bytes | None:
        with self._lock:
            return self._kept.get(seq)


def camera_names(raw: bytes) -> tuple[str, ...]:
    """Return the cameras of a request. Raises Malformed."""
    return tuple(image.name for image in present_images(raw))


def present_images(raw: bytes) -> list[Image]:
    """Return the images of the present, without those of the history. Raises Malformed."""
    return [image for image in wire_observation.decode(raw).images if not image.steps_back]


def jpeg_of(raw: bytes, camera: str) -> bytes | None:
    """
    Return the image of a camera as the policy saw it, None without one; raw pixels are encoded
    here. Raises Malformed.
    """
    found = next((image for image in present_images(raw) if image.name == camera), None)
    if found is None:
        return None
    if found.codec == Codec.JPEG:
        # the browser decodes it
        check_jpeg(found)
        return bytes(found.data)
    return encoded(found)


def encoded(image: Image) -> bytes:
    """Return raw pixels as JPEG; depth is scaled to 8 bits. Raises Malformed."""
    shape = image.height, image.width, image.channels
    kind = CHANNEL_TYPES.get(image.channel_bytes)
    pixels = np.frombuffer(image.data, np.uint8)
    if kind is None or image.channels not in (1, 3) or not all(shape):
        raise Malformed('wrong_shape', f'camera {image.name}: {shape} is not an image')
    if pixels.size != image.height * image.width * image.channels * image.channel_bytes:
        raise Malformed('wrong_shape', f'camera {image.name}: {pixels.size} bytes for {shape}')
    frame: Uint8Array = np.ascontiguousarray(eight_bits(pixels.view(kind)).reshape(shape))
    data: bytes = simplejpeg.encode_jpeg(
        frame, quality=QUALITY, colorspace='RGB' if image.channels == 3 else 'GRAY'
    )
    return data


def eight_bits(values: FrameArray) -> Uint8Array:
    """Return values as 8 bits; 16 bits are scaled so that the largest one is white."""
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    largest = max(int(values.max(initial=0)), 1)
    return (values.astype(np.float32) * (255 / largest)).astype(np.uint8)


DIGITS, NAMES, PLAN_ROWS = 4, 256, 1000
# of a chunk whose control rate is not known yet
DEFAULT_STEP_MS = 33.3
# further apart: a clock was set, or messages waited
RESYNC_MS = 1000


class RobotMessages:
    """See the module; `malformed` counts what is no such message."""

    def __init__(self) -> None:
        self.requests = LastRequests()
        self.malformed = 0
        self._time = TimeBase()
        self._heard = Heard()
        self._shown_request: int | None = None
        self._step_ms = DEFAULT_STEP_MS
        self._lock = threading.Lock()

    def on_command(self, raw: bytes, now_ms: int) -> None:
        """Add a command."""
        try:
            command = decode(ExecutedAction, raw)
        except Malformed:
            self.malformed += 1
            return
        self._heard.executed.append(
            Executed(
                self._time.place(command.stamp.ns / 1e6, now_ms),
                numbers(command.commanded),
                numbers(command.raw),
                command.rung.name,
                command.cage_result.name,
                bounded(command.reason),
            )
        )

    def note(self, now_ms: int, kind: str, text: str) -> None:
        """Add an event that no message shows."""
        self._heard.events.append(RobotEvent(now_ms, kind, bounded(text)))

    def on_chunk(self, raw: bytes, client_id: str, now_ms: int) -> None:
        """Add a chunk; one of another robot is ignored."""
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed:
            self.malformed += 1
            return
        if chunk.client_id != client_id:
            return
        if chunk.status != Status.OK:
            text = f'reply {chunk.status}: {chunk.status_text}'
            self._heard.events.append(RobotEvent(now_ms, 'reply', bounded(text)))
            return
        rows = [numbers(row) for row in chunk.robot[:PLAN_ROWS].tolist()]
        times = [int(now_ms + index * self._step_ms) for index in range(len(rows))]
        self._heard.plan = ShownPlan(times, series(rows), bounded(chunk.policy), chunk.header.seq)

    def on_session(self, raw: bytes, client_id: str) -> None:
        """Note the names of the joints and the control rate, of the robot's own sessions."""
        try:
            request = read_open_session(raw)
        except Malformed:
            self.malformed += 1
            return
        if request and request.client_id == client_id:
            names = request.action_names[:NAMES]
            self._heard.names = tuple(bounded(name, 64) for name in names)
            if request.fps > 0:
                self._step_ms = 1000 / request.fps

    def on_request(self, raw: bytes) -> None:
        """Keep a request; it is decoded when a viewer requests it. Any thread."""
        try:
            self.requests.put(read_envelope(raw).header.seq, raw)
        except Malformed:
            with self._lock:
                self.malformed += 1

    def take(self) -> Heard:
        """Return what was heard since the last call."""
        heard, self._heard = self._heard, Heard()
        newest = self.requests.newest()
        if newest and newest[0] != self._shown_request:
            self._shown_request = newest[0]
            try:
                heard.images = newest[0], camera_names(newest[1])
            except Malformed:
                with self._lock:
                    self.malformed += 1
        return heard


def numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return values of joints as the page shows them."""
    return tuple(rounded(float(value), DIGITS) for value in values)


class TimeBase:
    """
    Keeps the distances between the stamps of one robot; only how far its clock is off is measured,
    by when messages arrive. The stamps are for a plot and are not compared with another clock.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def place(self, stamp_ms: float, arrived_ms: float) -> int:
        """Return the time of a stamp on the steady clock [ms]."""
        offset_ms = arrived_ms - stamp_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) > RESYNC_MS:
            self._offset_ms = offset_ms
        # what arrives sooner than ever shows that the others were late
        self._offset_ms = min(self._offset_ms, offset_ms)
        return int(stamp_ms + self._offset_ms)
