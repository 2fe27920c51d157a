# SPDX-License-Identifier: Apache-2.0
"""
What a `request` record has of a reply: its new rows, and for a replay, in a server's, all of it.

The field holds the reply and the request without its images, which are in the record itself. Pure
functions; any thread.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.schema import Flag
from lerobot_serve.trace.format.records import Record, RequestRecord


def repeated_rows(request: Observation) -> int:
    """Return the number of prefix rows that the reply repeats."""
    return min(request.inference_delay_steps, len(request.prefix_robot))


def chunk_range(chunk: Chunk, repeated: int) -> list[int] | None:
    """
    Return the first new row and the number of rows; None for a reply without actions.

    The rows before the first repeat the prefix, unless it was ignored.
    """
    rows = len(chunk.robot)
    first = 0 if chunk.header.flags & Flag.PREFIX_IGNORED else repeated
    return [first, rows] if rows else None


# the field of the record
REPLAY_FIELD = 'replay'
TEXTS, HORIZON = ('session_id', 'task', 'robot_type'), 'rtc_execution_horizon'


class ReplayContent(NamedTuple):
    """
    A request and its reply as CDR bytes, and session metadata of the request. The request is empty
    if the server did not decode it.
    """

    request: bytes
    answer: bytes
    info: dict[str, Any]


def encode_field(observation: Observation | None, reply: bytes, info: Mapping[str, Any]) -> Record:
    """Return the field. Raises Unencodable."""
    field = {'answer': _text(reply), **{name: value for name, value in info.items() if value}}
    if observation:
        images = tuple(replace(image, data=b'') for image in observation.images)
        bare = replace(observation, images=images)
        field['request'] = _text(wire_observation.encode(bare))
    return field


def decode_field(record: RequestRecord) -> ReplayContent | None:
    """Return the replay content of a record, None without such a field. Raises ValueError."""
    field = record.replay
    if field is None:
        return None
    try:
        reply = _bytes(field['answer'])
        request = _request(field['request'], record.images or []) if 'request' in field else b''
        return ReplayContent(request, reply, _info(field))
    except (KeyError, TypeError, AttributeError, Malformed, Unencodable) as error:
        raise ValueError(f'{REPLAY_FIELD} of a request is invalid: {error!r}') from error


def _request(text: str, image_records: list[Record]) -> bytes:
    bare = wire_observation.decode(_bytes(text))
    images = tuple(
        _whole(image, record) for image, record in zip(bare.images, image_records, strict=True)
    )
    return wire_observation.encode(replace(bare, images=images))


def _whole(image: Image, record: Record) -> Image:
    return replace(image, data=_bytes(record['base64']))


def _info(field: Record) -> dict[str, Any]:
    texts = {name: field[name] for name in TEXTS if type(field.get(name)) is str}
    horizon = field.get(HORIZON)
    is_one = type(horizon) is int and 0 <= horizon < 1 << 32
    return texts | ({HORIZON: horizon} if is_one else {})


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
