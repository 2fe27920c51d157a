# SPDX-License-Identifier: Apache-2.0
"""Observations and chunks to test with: two fixed ones, and any that hypothesis can think of."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
import msgspec
import numpy as np

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image, NO_ACTIONS
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import Codec, MsgType, Status

# a busy machine draws images slowly; that is not a fault of the code
patient = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def uint(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def texts(limit: int = 32) -> st.SearchStrategy[str]:
    """Return any text that may be sent, of up to `limit` characters of up to 4 bytes."""
    letters = st.characters(codec='utf-8', exclude_characters='\0')
    return st.text(letters, max_size=limit)


scalars = st.floats(width=32, allow_nan=False)
any_float = st.floats(width=32, allow_nan=True)


def tables(rows: tuple[int, int], columns: tuple[int, int]) -> st.SearchStrategy[np.ndarray]:
    """Return float32 tables, NaN and infinity included."""

    def of(shape: tuple[int, int]) -> st.SearchStrategy[np.ndarray]:
        values = st.lists(any_float, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
        return values.map(lambda v: np.array(v, np.float32).reshape(shape))

    return st.tuples(st.integers(*rows), st.integers(*columns)).flatmap(of)


actions = st.just(NO_ACTIONS) | tables((1, 3), (1, 7))


def frame(height: int, width: int, channels: int, kind: type, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, np.iinfo(kind).max, (height, width, channels), kind, endpoint=True)


@st.composite
def some_images(draw: st.DrawFn) -> Image:
    codec = draw(st.sampled_from(Codec))
    kind = draw(st.sampled_from([np.uint8, np.uint16])) if codec == Codec.RAW else np.uint8
    size = st.integers(1, 17)
    shape = draw(size), draw(size), draw(st.sampled_from([1, 3]))
    return image_codec.encode(
        draw(texts()),
        frame(*shape, kind, draw(uint(8))),
        codec,
        quality=draw(st.integers(1, 100)),
        steps_back=draw(uint(16)),
    )


def headers(msg_type: MsgType) -> st.SearchStrategy[Header]:
    return st.builds(
        Header,
        uint(64),
        st.integers(-(2**63), 2**63 - 1),
        uint(32),
        uint(32),
        uint(16),
        st.just(int(msg_type)),
        uint(8),
    )


several_extensions = st.lists(
    st.builds(Extension, texts(16), st.binary(max_size=9)), max_size=3
).map(tuple)

observations = st.builds(
    Observation,
    headers(MsgType.OBSERVATION),
    texts(),
    texts(),
    tables((1, 3), (0, 7)),
    st.lists(some_images(), max_size=2).map(tuple),
    texts(),
    uint(32),
    scalars,
    texts(),
    actions,
    actions,
    several_extensions,
)

chunks = st.builds(
    Chunk,
    headers(MsgType.CHUNK),
    texts(),
    texts(),
    actions,
    actions,
    uint(8),
    texts(),
    texts(4),
    texts(),
    uint(64),
    scalars,
    scalars,
    scalars,
    scalars,
    uint(32),
    several_extensions,
)


# smooth, so that JPEG keeps it but for rounding
SMOOTH = np.add.outer(np.arange(33) * 3, np.arange(17) * 5).astype(np.uint8)
PICTURE = np.stack([SMOOTH, 255 - SMOOTH, SMOOTH // 2], axis=2)


def an_observation() -> Observation:
    """Return one with something in every field."""
    cameras = (
        image_codec.encode('front', frame(5, 3, 3, np.uint8), Codec.JPEG),
        image_codec.encode('depth', frame(3, 5, 1, np.uint16), Codec.RAW, steps_back=1),
    )
    return Observation(
        Header(7, -8, 9, 10, 1, int(MsgType.OBSERVATION), 1),
        'arm',
        'épisode',
        np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        cameras,
        'reach',
        3,
        0.5,
        'act@12',
        np.ones((2, 3), np.float32),
        np.full((2, 3), 2, np.float32),
        (Extension('vendor.force', b'\x01\x02\x03'),),
    )


def a_chunk() -> Chunk:
    """Return one with something in every field."""
    return Chunk(
        Header(7, -8, 9, 10, 1, int(MsgType.CHUNK), 2),
        'arm',
        'épisode',
        np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        np.ones((2, 3), np.float32),
        int(Status.OK),
        'fine',
        'a',
        'act@12',
        2**63,
        0.5,
        1.5,
        2.5,
        0.25,
        4,
        (Extension('vendor.force', b'\x01\x02\x03'),),
    )


def content(thing: object) -> object:
    """Return what compares equal when two wire objects hold the same, NaN by NaN."""
    if isinstance(thing, msgspec.Struct):
        return tuple(content(getattr(thing, name)) for name in thing.__struct_fields__)
    if dataclasses.is_dataclass(thing):
        return tuple(content(getattr(thing, f.name)) for f in dataclasses.fields(thing))
    if isinstance(thing, tuple):
        return tuple(map(content, thing))
    if isinstance(thing, np.ndarray) and thing.dtype != np.uint8:
        return thing.shape, thing.astype('<f4').tobytes()
    if isinstance(thing, np.ndarray | memoryview):
        return bytes(thing)
    return repr(thing) if isinstance(thing, float) else thing
