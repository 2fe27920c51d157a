# SPDX-License-Identifier: Apache-2.0
"""What breaks the contract raises Unencodable before a byte leaves, up to exactly its bound."""

from __future__ import annotations

import numpy as np
import pytest
from support.contract.wire_examples import a_chunk, an_observation, content
from support.replacing import replace

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import message_parts as wire_content
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.limits import (
    FINGERPRINT_LIMIT,
    ID_LIMIT,
    KEY_LIMIT,
    SLOT_LIMIT,
    TASK_LIMIT,
    TEXT_LIMIT,
)
from lerobot_serve.contract.records import Extension

OBSERVATION, CHUNK = an_observation(), a_chunk()
HUGE = np.broadcast_to(np.float32(0), (1, wire_content.ACTION_VALUES_LIMIT + 1))


def wire_of(plain):
    return wire_chunk if isinstance(plain, wire_chunk.Chunk) else wire_observation


def arrives(plain) -> bool:
    wire = wire_of(plain)
    return content(wire.decode(wire.encode(plain))) == content(plain)


def refused(plain) -> str:
    with pytest.raises(Unencodable) as caught:
        wire_of(plain).encode(plain)
    return str(caught.value)


strings = pytest.mark.parametrize(
    'plain, field, limit',
    [
        (OBSERVATION, 'client_id', ID_LIMIT),
        (OBSERVATION, 'episode_id', ID_LIMIT),
        (OBSERVATION, 'task', TASK_LIMIT),
        (OBSERVATION, 'prefix_policy', FINGERPRINT_LIMIT),
        (CHUNK, 'client_id', ID_LIMIT),
        (CHUNK, 'episode_id', ID_LIMIT),
        (CHUNK, 'status_text', TEXT_LIMIT),
        (CHUNK, 'slot', SLOT_LIMIT),
        (CHUNK, 'policy', FINGERPRINT_LIMIT),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)


@strings
def test_a_text_arrives_up_to_its_bound_and_not_beyond(plain, field, limit):
    assert arrives(replace(plain, **{field: 'x' * limit}))
    assert str(limit) in refused(replace(plain, **{field: 'x' * (limit + 1)}))


@strings
def test_the_bound_counts_bytes(plain, field, limit):
    assert arrives(replace(plain, **{field: 'é' * (limit // 2)}))
    refused(replace(plain, **{field: 'é' * (limit // 2 + 1)}))


@strings
@pytest.mark.parametrize('text', ['\0', 'a\0b', 'a\0', '\ud800', 'a\udfff'], ids=ascii)
def test_a_text_that_no_reader_would_take_is_refused(plain, field, limit, text):
    refused(replace(plain, **{field: text}))


@pytest.mark.parametrize(
    'field, lowest, highest',
    [
        ('seq', 0, 2**64 - 1),
        ('client_mono_ns', -(2**63), 2**63 - 1),
        ('session_epoch', 0, 2**32 - 1),
        ('episode', 0, 2**32 - 1),
        ('schema_version', 0, 2**16 - 1),
        ('flags', 0, 2**8 - 1),
    ],
)
@pytest.mark.parametrize('plain', [OBSERVATION, CHUNK], ids=['observation', 'chunk'])
def test_a_number_of_the_header_fits_its_field(plain, field, lowest, highest):
    for number in (lowest, highest):
        assert arrives(replace(plain, header=replace(plain.header, **{field: number})))
    for number in (lowest - 1, highest + 1):
        refused(replace(plain, header=replace(plain.header, **{field: number})))


@pytest.mark.parametrize(
    'plain, field, highest',
    [
        (OBSERVATION, 'inference_delay_steps', 2**32 - 1),
        (CHUNK, 'seed', 2**64 - 1),
        (CHUNK, 'superseded', 2**32 - 1),
        (CHUNK, 'status', 2**8 - 1),
    ],
    ids=lambda given: given if isinstance(given, str) else '',
)
def test_a_number_fits_its_field(plain, field, highest):
    assert arrives(replace(plain, **{field: 0}))
    assert arrives(replace(plain, **{field: highest}))
    for number in (-1, highest + 1, 0.5):
        refused(replace(plain, **{field: number}))


@pytest.mark.parametrize(
    'plain, field',
    [(OBSERVATION, 'queue_remaining_s'), (CHUNK, 'queue_wait_ms'), (CHUNK, 'server_load')],
    ids=lambda given: given if isinstance(given, str) else '',
)
def test_a_number_too_large_for_its_float_is_refused(plain, field):
    assert arrives(replace(plain, **{field: float('inf')}))
    refused(replace(plain, **{field: 1e39}))


@pytest.mark.parametrize('shape', [(), (3,), (0,), (0, 3), (1, 2, 3)], ids=str)
def test_a_state_is_observations_times_values(shape):
    refused(replace(OBSERVATION, state=np.zeros(shape, np.float32)))


@pytest.mark.parametrize('shape', [(), (3,), (1, 2, 3)], ids=str)
@pytest.mark.parametrize(
    'plain, field',
    [
        (OBSERVATION, 'prefix_model'),
        (OBSERVATION, 'prefix_robot'),
        (CHUNK, 'model'),
        (CHUNK, 'robot'),
    ],
    ids=lambda given: given if isinstance(given, str) else '',
)
def test_actions_are_rows_times_columns(plain, field, shape):
    assert field in refused(replace(plain, **{field: np.zeros(shape, np.float32)}))


@pytest.mark.parametrize('strange', ['float64', 'int64', '>f4', 'strided', 'transposed'])
def test_any_layout_in_memory_arrives_as_the_same_numbers(strange):
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = {
        'strided': np.repeat(np.repeat(table, 2, 0), 2, 1)[::2, ::2],
        'transposed': np.ascontiguousarray(table.T).T,
    }.get(strange)
    given = table.astype(strange) if given is None else given
    chunk = wire_chunk.decode(wire_chunk.encode(replace(CHUNK, robot=given)))
    assert np.array_equal(chunk.robot, table)
    plain = replace(OBSERVATION, state=given)
    observation = wire_observation.decode(wire_observation.encode(plain))
    assert np.array_equal(observation.state, table)


@pytest.mark.parametrize(
    'field, highest',
    [
        ('height', 2**32 - 1),
        ('width', 2**32 - 1),
        ('steps_back', 2**16 - 1),
        ('codec', 255),
        ('channels', 255),
        ('channel_bytes', 255),
    ],
)
def test_a_number_of_an_image_fits_its_field(field, highest):
    image = OBSERVATION.images[0]
    assert arrives(replace(OBSERVATION, images=(replace(image, **{field: highest}),)))
    for number in (-1, highest + 1):
        refused(replace(OBSERVATION, images=(replace(image, **{field: number}),)))


def test_names_of_images_and_extensions_have_bounds():
    image = OBSERVATION.images[0]
    assert arrives(replace(OBSERVATION, images=(replace(image, name='x' * ID_LIMIT),)))
    refused(replace(OBSERVATION, images=(replace(image, name='x' * (ID_LIMIT + 1)),)))
    assert arrives(replace(CHUNK, extensions=(Extension('x' * KEY_LIMIT, b''),)))
    refused(replace(CHUNK, extensions=(Extension('x' * (KEY_LIMIT + 1), b''),)))


def test_what_a_reader_would_refuse_for_its_size_is_not_sent(monkeypatch):
    image, extension = OBSERVATION.images[0], OBSERVATION.extensions[0]
    many_images = (image,) * wire_content.IMAGES_LIMIT
    many_extensions = (extension,) * wire_content.EXTENSIONS_LIMIT
    assert arrives(replace(OBSERVATION, images=many_images, extensions=many_extensions))
    refused(replace(OBSERVATION, images=(*many_images, image)))
    refused(replace(CHUNK, extensions=(*many_extensions, extension)))
    refused(replace(OBSERVATION, state=HUGE))
    refused(replace(CHUNK, robot=HUGE))
    monkeypatch.setattr(wire_content, 'IMAGE_BYTES_LIMIT', 8)
    monkeypatch.setattr(wire_content, 'EXTENSION_BYTES_LIMIT', 8)
    for data, fits in ((b'12345678', True), (b'123456789', False)):
        sized = replace(OBSERVATION, images=(replace(image, data=data),))
        extended = replace(OBSERVATION, images=(), extensions=(Extension('key', data),))
        for plain in (sized, extended):
            assert arrives(plain) if fits else refused(plain)


def test_bytes_with_gaps_are_refused():
    image = replace(OBSERVATION.images[0], data=np.zeros(8, np.uint8)[::2])
    assert 'front' in refused(replace(OBSERVATION, images=(image,)))


@pytest.mark.parametrize('kind', [bytes, bytearray, memoryview, np.array])
def test_any_buffer_is_bytes_of_an_image(kind):
    data = np.arange(8, dtype=np.uint8) if kind is np.array else kind(bytes(range(8)))
    plain = replace(OBSERVATION, images=(replace(OBSERVATION.images[0], data=data),))
    arrived = wire_observation.decode(wire_observation.encode(plain))
    assert arrived.images[0].data.tolist() == list(range(8))


def test_what_is_packed_once_is_checked_each_time():
    """A float equals an integer, and is not a height."""
    (image, *others) = OBSERVATION.images
    assert arrives(OBSERVATION)
    spoilt = replace(image, height=float(image.height))
    for _ in range(2):
        assert 'does not fit its fields' in refused(replace(OBSERVATION, images=(spoilt, *others)))


def test_more_names_than_are_kept_arrive():
    image = OBSERVATION.images[0]
    for begin in range(0, 1200, 200):
        # of all lengths, so that what follows is aligned in each way
        images = tuple(
            replace(image, name=f'{i}{"x" * (i % 5)}', height=i % 7 + 1)
            for i in range(begin, begin + 200)
        )
        plain = replace(OBSERVATION, client_id=f'robot_{begin}', images=images)
        assert arrives(plain)
        assert arrives(replace(CHUNK, episode_id='e' * (begin // 200), status_text=f'{begin}'))
