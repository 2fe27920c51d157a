# SPDX-License-Identifier: Apache-2.0
"""
One recorded message, the types of those that tools read, images of cameras and their heads,
service events and the error of bags. Any thread.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, NamedTuple

from msgspec import Struct
import numpy as np
from numpy.typing import NDArray

from lerobot_serve.contract import records
from lerobot_serve.contract.cdr import CdrReader
from lerobot_serve.contract.codec import decode, read
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.types import Bytes, Time, UInt8, UInt32
from lerobot_serve.errors import UserError
from lerobot_serve.picture_headers import PNG, read_jpeg_header, UnreadablePicture

PACKAGE = 'lerobot_serve_interfaces'
INTERFACES = f'{PACKAGE}/msg'
OBSERVATION = f'{INTERFACES}/Observation'
CHUNK = f'{INTERFACES}/ActionChunk'
EXECUTED = f'{INTERFACES}/ExecutedAction'
EDGE_STATE = f'{INTERFACES}/EdgeState'
DECISION = f'{INTERFACES}/RoutingDecision'
OUTCOME = f'{INTERFACES}/EpisodeOutcome'
DIVERGENCE = f'{INTERFACES}/ShadowDivergence'
SERVER_STATUS = f'{INTERFACES}/ServerStatus'
ROUTER_STATE = f'{INTERFACES}/RouterState'
CANARY_STATE = f'{INTERFACES}/CanaryState'
TEXT_TYPE, ROBOT_FILE = 'std_msgs/msg/String', 'robot_file'
DIAGNOSTICS = '/diagnostics'


class BagError(UserError, ValueError):
    """A bag that cannot be read or created; the text has path, reason and remedy."""


class BagMessage(NamedTuple):
    """
    One recorded message: the full names of topic and type, its reception time (nanoseconds since
    1970), its CDR bytes, and the source timestamp that its writer gave it, 0 for unknown (SQLite).
    """

    topic: str
    type: str
    stamp_ns: int
    data: bytes
    sent_ns: int = 0

    def record(self) -> Any:
        """Return it as the class of its type in `contract.records`. Raises Malformed."""
        return decode(getattr(records, self.type.rpartition('/')[2]), self.data)

    @property
    def node(self) -> str:
        """The node of a topic `~/...`."""
        return self.topic.rpartition('/')[0]

    @property
    def is_robot_file(self) -> bool:
        """Whether it is ~/robot_file of an edge controller."""
        return is_robot_file(self.topic, self.type)


def is_robot_file(topic: str, kind: str) -> bool:
    """Return whether it is ~/robot_file of an edge controller."""
    return kind == TEXT_TYPE and topic.rpartition('/')[2] == ROBOT_FILE


RAW_TYPE, COMPRESSED_TYPE = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
DATA_LIMIT, NAME_LIMIT = 1 << 28, 4096


class RawImage(Struct, frozen=True, eq=False):
    """sensor_msgs/Image; `data` are a view of the message."""

    stamp: Time = Time()
    frame_id: Annotated[str, NAME_LIMIT] = ''
    height: UInt32 = 0
    width: UInt32 = 0
    encoding: Annotated[str, NAME_LIMIT] = ''
    is_bigendian: UInt8 = 0
    step: UInt32 = 0
    data: Annotated[Bytes, DATA_LIMIT] = b''


class CompressedImage(Struct, frozen=True, eq=False):
    """sensor_msgs/CompressedImage; `data` are a view of the message."""

    stamp: Time = Time()
    frame_id: Annotated[str, NAME_LIMIT] = ''
    format: Annotated[str, NAME_LIMIT] = ''
    data: Annotated[Bytes, DATA_LIMIT] = b''


class Encoding(NamedTuple):
    """The type and the channels of a pixel; `colors` is their order, empty for depth."""

    dtype: str
    channels: int
    colors: str = ''


ENCODINGS = {
    'rgb8': Encoding('u1', 3, 'RGB'),
    'bgr8': Encoding('u1', 3, 'BGR'),
    'rgba8': Encoding('u1', 4, 'RGBA'),
    'bgra8': Encoding('u1', 4, 'BGRA'),
    'mono8': Encoding('u1', 1, 'GRAY'),
    '16UC1': Encoding('u2', 1),
    'mono16': Encoding('u2', 1),
    '32FC1': Encoding('f4', 1),
}


def pixels_of(image: RawImage) -> NDArray[Any]:
    """Return height x width x channels in the order of the message. Raises Malformed."""
    if image.encoding not in ENCODINGS:
        raise Malformed('frame', f'image encoding {image.encoding!r} is not one of {[*ENCODINGS]}')
    kind, channels, _ = ENCODINGS[image.encoding]
    element = np.dtype(('>' if image.is_bigendian else '<') + kind)
    height, step, row_bytes = image.height, image.step, image.width * channels * element.itemsize
    data = np.frombuffer(image.data, np.uint8)
    if not (0 < row_bytes <= step and height > 0 and height * step <= data.size):
        raise Malformed('frame', f'{height} x {image.width} {image.encoding} in {data.size} bytes')
    rows = np.ascontiguousarray(data[: height * step].reshape(height, step)[:, :row_bytes])
    pixels = rows.view(element).astype(element.newbyteorder('='), copy=False)
    return pixels.reshape(height, image.width, channels)


TOPIC_END, TYPE_END = '/_service_event', '_Event'
OPEN_SESSION = f'{PACKAGE}/srv/OpenSession{TYPE_END}'

# event type of a request received by the service
REQUEST_RECEIVED = 1
BYTE, UINT64 = struct.Struct('<B'), struct.Struct('<Q')
# stamp of two numbers, and the 16 bytes of the client gid
STAMP_AND_CALLER = struct.Struct('<iI16s')


def is_service_event(topic: str, kind: str) -> bool:
    """Return whether a topic carries service events, by its names."""
    return topic.endswith(TOPIC_END) and kind.endswith(TYPE_END)


def read_open_session(raw: bytes) -> OpenSessionRequest | None:
    """Return the request of an event of OpenSession; None for a reply. Raises Malformed."""
    reader = CdrReader(raw)
    (event,) = reader.unpack(BYTE, align=1)
    reader.unpack(STAMP_AND_CALLER, align=4)
    reader.unpack(UINT64, align=8)
    if event != REQUEST_RECEIVED or not reader.count(1, 'request'):
        return None
    return read(reader, OpenSessionRequest)


# width, height, bits and colour type of the first chunk of a PNG
PNG_HEAD_AT, PNG_HEAD = 16, struct.Struct('>IIBB')


class FrameHead(NamedTuple):
    """Frames with equal heads have equal shapes. `pixels` names their encoding."""

    height: int
    width: int
    pixels: str


def head_of(kind: str, data: bytes) -> FrameHead | None:
    """Return the head of an image message; None for another type, or one that has no frame."""
    try:
        if kind == RAW_TYPE:
            image = decode(RawImage, data)
            return FrameHead(image.height, image.width, image.encoding)
        if kind == COMPRESSED_TYPE:
            return _compressed_head(decode(CompressedImage, data))
    except (Malformed, struct.error):
        return None
    return None


def _compressed_head(image: CompressedImage) -> FrameHead:
    form, data = image.format, bytes(image.data)
    if data.startswith(PNG):
        width, height, bits, colour = PNG_HEAD.unpack_from(data, PNG_HEAD_AT)
        return FrameHead(height, width, f'{form} {bits} {colour}')
    try:
        size = read_jpeg_header(data)
    except UnreadablePicture as error:
        # decoding one of them gives the reason
        return FrameHead(0, 0, str(error))
    return FrameHead(size.height, size.width, f'{form} {size.channels}')
