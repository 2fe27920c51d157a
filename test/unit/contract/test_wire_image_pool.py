# SPDX-License-Identifier: Apache-2.0
"""The cameras of one robot, side by side: the same results as one by one, and no thread stays."""

from __future__ import annotations

from dataclasses import replace
import threading

import numpy as np
import pytest
from support.contract.wire_examples import PICTURE

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.schema import Codec

FRAMES = {f'camera {n}': np.roll(PICTURE, n, axis=0) for n in range(5)}


@pytest.fixture
def pool():
    pool = image_codec.ImageCodecPool(3)
    yield pool
    pool.close()


@pytest.mark.parametrize('codec', Codec)
def test_a_pool_gives_what_one_thread_gives_in_order(pool, codec):
    encoded = pool.encode_all(FRAMES, codec, 80)
    alone = [image_codec.encode(n, f, codec, quality=80) for n, f in FRAMES.items()]
    assert [image.name for image in encoded] == list(FRAMES)
    assert [bytes(image.data) for image in encoded] == [bytes(image.data) for image in alone]
    decoded = pool.decode_all(encoded)
    for given_frame, image in zip(decoded, alone, strict=True):
        assert np.array_equal(given_frame, image_codec.decode(image))


@pytest.mark.parametrize('threads', [0, 1])
def test_a_pool_of_one_thread_starts_none(threads):
    before = threading.active_count()
    pool = image_codec.ImageCodecPool(threads)
    assert len(pool.decode_all(pool.encode_all(FRAMES, Codec.JPEG, 80))) == len(FRAMES)
    assert threading.active_count() == before
    pool.close()


def test_a_pool_ends_its_threads():
    before = threading.active_count()
    pool = image_codec.ImageCodecPool(3)
    pool.encode_all(FRAMES, Codec.JPEG, 80)
    assert threading.active_count() > before
    pool.close()
    assert threading.active_count() == before


def test_a_pool_works_on_after_a_bad_frame(pool):
    broken_one = replace(image_codec.encode('broken', PICTURE, Codec.JPEG), data=b'')
    broken = (*pool.encode_all(FRAMES, Codec.JPEG, 80), broken_one)
    with pytest.raises(Malformed, match='broken'):
        pool.decode_all(broken)
    with pytest.raises(Unencodable, match='empty'):
        pool.encode_all({**FRAMES, 'empty': PICTURE[:0]}, Codec.JPEG, 80)
    assert len(pool.decode_all(broken[:-1])) == len(FRAMES)


def test_no_cameras_are_no_images(pool):
    assert pool.encode_all({}, Codec.JPEG, 80) == ()
    assert pool.decode_all(()) == ()
