# SPDX-License-Identifier: Apache-2.0
"""The frames of a history: each in its place, and none encoded twice."""

from __future__ import annotations

import numpy as np
import pytest

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Codec
from lerobot_serve.edge.inputs.frame_encoding import camera_messages, encode_frames
from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.edge.inputs.latest import InputSnapshot

CAMERAS = ('front', 'wrist')
QUALITY = 80


def raw(value: int) -> bytes:
    """Return a small grey frame as an input delivers it: another object at each call."""
    return bytes([value]) * (8 * 8)


class Opener:
    """Opens frames and remembers which."""

    def __init__(self) -> None:
        self.opened: list[bytes] = []

    def __call__(self, _: str, data: bytes) -> np.ndarray:
        self.opened.append(data)
        return np.frombuffer(data, np.uint8).reshape(8, 8, 1)


def read_all(steps, cameras, read) -> dict:
    """Read each message of the cameras once, as the builder of observations does."""
    return {key: read(key[0], raw) for key, raw in camera_messages(steps, cameras).items()}


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def encode(opener):
    """Give a function that encodes moments, oldest first, two control steps apart."""
    pool = image_codec.ImageCodecPool(2)

    def encode(
        *moments: dict[str, bytes], cameras: tuple[str, ...] = CAMERAS, codec: Codec = Codec.JPEG
    ) -> tuple[Image, ...]:
        newest = len(moments) - 1
        names = {name: name for name in cameras}
        steps = tuple(
            HistoryStep(InputSnapshot(m, 0), 2 * (newest - i)) for i, m in enumerate(moments)
        )
        frames = read_all(steps, cameras, opener)
        return encode_frames(steps, names, frames, pool, codec, QUALITY)

    yield encode
    pool.close()


def content(encoded: tuple[Image, ...]) -> list[tuple[str, int, int]]:
    """Return name, age and pixel of each image."""
    return [(i.name, i.steps_back, int(image_codec.decode(i).mean())) for i in encoded]


@pytest.mark.parametrize('codec', Codec)
def test_each_frame_has_its_camera_and_its_age(encode, codec):
    moments = [{'front': raw(10 + n), 'wrist': raw(20 + n)} for n in range(3)]
    assert content(encode(*moments, codec=codec)) == [
        ('front', 4, 10),
        ('wrist', 4, 20),
        ('front', 2, 11),
        ('wrist', 2, 21),
        ('front', 0, 12),
        ('wrist', 0, 22),
    ]


def test_a_frame_in_several_rows_is_opened_and_encoded_once(encode, opener):
    slow, first, second = raw(10), raw(20), raw(21)
    encoded = encode(
        {'front': slow, 'wrist': first},
        {'front': slow, 'wrist': second},
        {'front': slow, 'wrist': second},
    )
    assert content(encoded) == [
        ('front', 4, 10),
        ('wrist', 4, 20),
        ('front', 2, 10),
        ('wrist', 2, 21),
        ('front', 0, 10),
        ('wrist', 0, 21),
    ]
    assert sorted(opener.opened) == [slow, first, second]
    assert len({id(image.data) for image in encoded}) == 3


def test_equal_bytes_of_two_cameras_stay_two_images(encode):
    same = raw(10)
    encoded = encode({'front': same, 'wrist': same})
    assert content(encoded) == [('front', 0, 10), ('wrist', 0, 10)]


def test_names_that_look_like_ages_are_not_mixed_up(encode):
    odd = 'front, 2 steps back'
    moments = [{'front': raw(10 + n), odd: raw(20 + n)} for n in range(2)]
    assert content(encode(*moments, cameras=('front', odd))) == [
        ('front', 2, 10),
        (odd, 2, 20),
        ('front', 0, 11),
        (odd, 0, 21),
    ]


def test_one_moment_is_what_it_would_be_alone(encode):
    (image,) = encode({'front': raw(10)}, cameras=('front',))
    alone = image_codec.encode('front', Opener()('front', raw(10)), Codec.JPEG, quality=QUALITY)
    assert bytes(image.data) == bytes(alone.data)
    assert (image.name, image.height, image.width) == ('front', 8, 8)
    assert (image.codec, image.channels, image.steps_back) == (Codec.JPEG, 1, 0)


def test_no_cameras_are_no_images(encode):
    assert encode({}, {}, cameras=()) == ()


def test_a_frame_that_cannot_be_encoded_is_named_with_its_age(opener):
    pool = image_codec.ImageCodecPool(1)
    moments = tuple(HistoryStep(InputSnapshot({'front': raw(n)}, 0), 1 - n) for n in range(2))
    with pytest.raises(Unencodable, match='camera front, 0 steps back: a frame must be'):
        encode_frames(
            moments,
            {'front': 'front'},
            read_all(moments, ['front'], lambda *given: opener(*given).astype(np.float32)),
            pool,
            Codec.JPEG,
            QUALITY,
        )


def test_a_frame_that_is_ready_is_sent_as_it_is_under_the_name_of_the_policy():
    pool = image_codec.ImageCodecPool(1)
    ready = Image('', 8, 8, b'a jpeg', Codec.JPEG)
    moments = tuple(
        HistoryStep(InputSnapshot({'front': raw(n), 'wrist': raw(7)}, 0), 1 - n) for n in (0, 1)
    )
    names = {'front': 'cam_high', 'wrist': 'cam_low'}
    frames = read_all(
        moments, names, lambda name, data: ready if name == 'front' else Opener()(name, data)
    )
    encoded = encode_frames(moments, names, frames, pool, Codec.JPEG, QUALITY)
    assert [(i.name, i.steps_back) for i in encoded] == [
        ('cam_high', 1),
        ('cam_low', 1),
        ('cam_high', 0),
        ('cam_low', 0),
    ]
    assert [i.data == b'a jpeg' for i in encoded] == [True, False, True, False]
