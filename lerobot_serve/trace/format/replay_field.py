"""
What a policy needs to be asked again, as a field of a server's `request` record, and back.

The images stand in the record anyway; the field holds the request without them, and the answer.
Pure functions; any thread.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lerobot_serve.trace.format.records import Record
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.observation import Observation

# the field of the record
REPLAY_FIELD = 'replay'
TEXTS, HORIZON = ('session_id', 'task', 'robot_type'), 'rtc_execution_horizon'


class ReplayContent(NamedTuple):
    """
    A request and its answer as CDR bytes, and what the session adds to a request. A request that
    the server did not read is empty.
    """

    request: bytes
    answer: bytes
    info: dict[str, Any]


def encode_field(asked: Observation | None, answer: bytes, info: Mapping[str, Any]) -> Record:
    """Return the field. Raises Unencodable."""
    field = {'answer': _text(answer), **{name: value for name, value in info.items() if value}}
    if asked:
        bare = replace(asked, images=tuple(replace(image, data=b'') for image in asked.images))
        field['request'] = _text(wire_observation.encode(bare))
    return field


def decode_field(record: Record) -> ReplayContent | None:
    """Return what a record holds, None when it has no such field. Raises ValueError."""
    field = record.get(REPLAY_FIELD)
    if field is None:
        return None
    try:
        answer = _bytes(field['answer'])
        request = (
            _request(field['request'], record.get('images', ())) if 'request' in field else b''
        )
        return ReplayContent(request, answer, _info(field))
    except (KeyError, TypeError, AttributeError, Malformed, Unencodable) as error:
        raise ValueError(f'{REPLAY_FIELD} of a request makes no sense: {error!r}') from error


def _request(text: str, pictures: list[Record]) -> bytes:
    bare = wire_observation.decode(_bytes(text))
    images = tuple(
        _whole(image, picture) for image, picture in zip(bare.images, pictures, strict=True)
    )
    return wire_observation.encode(replace(bare, images=images))


def _whole(image: Image, picture: Record) -> Image:
    return replace(image, data=_bytes(picture['base64']))


def _info(field: Record) -> dict[str, Any]:
    texts = {name: field[name] for name in TEXTS if type(field.get(name)) is str}
    horizon = field.get(HORIZON)
    is_one = type(horizon) is int and 0 <= horizon < 1 << 32
    return texts | ({HORIZON: horizon} if is_one else {})


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
