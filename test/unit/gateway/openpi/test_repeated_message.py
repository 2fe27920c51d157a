# SPDX-License-Identifier: Apache-2.0
"""A message whose arrays alone are new is read as the parser reads it, without parsing."""

from __future__ import annotations

import gc
from unittest.mock import patch
import weakref

import msgpack
import numpy as np
import pytest
from support.gateway.openpi_messages import aloha, droid, libero, packed, picture

from lerobot_serve.gateway.openpi import repeated_message
from lerobot_serve.gateway.openpi.msgpack_reader import read_message
from lerobot_serve.gateway.openpi.repeated_message import MISSES_LIMIT, RepeatedMessage
from lerobot_serve.gateway.predictions import PredictionError


class CountingParser:
    """Counts how many messages are parsed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, data: memoryview) -> object:
        self.count += 1
        return read_message(data)


@pytest.fixture
def parser():
    parser = CountingParser()
    with patch.object(repeated_message, 'read_message', parser):
        yield parser


def plain(value: object) -> object:
    """Return a message in parts that can be compared."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    return value


def observation(level: int, **more: object) -> dict[str, object]:
    state = np.full(6, level, np.float32)
    return {'observation/state': state, 'images': {'a': picture(4, 5, 3) + level}, **more}


@pytest.mark.parametrize('example', [aloha, droid, libero])
def test_the_examples_are_parsed_once(parser, example):
    reader = RepeatedMessage()
    for _ in range(3):
        data = packed(example())
        assert plain(reader.read(memoryview(data))) == plain(read_message(data))
    assert parser.count == 1


def test_arrays_are_views_of_the_new_message_and_nothing_is_kept_of_the_old(parser):
    reader = RepeatedMessage()
    first = np.frombuffer(packed(observation(1)), np.uint8).copy()
    old = weakref.ref(first)
    reader.read(first.data)
    data = packed(observation(2))
    read = reader.read(memoryview(data))
    assert read['observation/state'].tolist() == [2.0] * 6 and parser.count == 1
    assert np.shares_memory(read['images']['a'], np.frombuffer(data, np.uint8))
    del first
    gc.collect()
    assert old() is None


@pytest.mark.parametrize(
    'changed',
    [
        {'prompt': 'fold'},
        {'prompt': 'lift', 'more': 1},
        {'prompt': 'lift', 'time': 2.0},
        {'prompt': 'lift', 'time': 1.0, 'images': {'a': picture(5, 4, 3)}},
        {'prompt': 'lift', 'time': 1.0, 'images': {'b': picture(4, 5, 3)}},
        {'prompt': 'lift', 'time': 1.0, 'observation/state': np.zeros(6, np.int32)},
    ],
)
def test_any_other_difference_is_seen(parser, changed):
    reader = RepeatedMessage()
    reader.read(memoryview(packed(observation(1, prompt='lift', time=1.0))))
    data = packed(observation(1) | changed)
    assert plain(reader.read(memoryview(data))) == plain(read_message(data))
    assert parser.count == 2


def test_what_cannot_be_read_is_refused_and_the_next_message_is_read(parser):
    reader = RepeatedMessage()
    data = packed(observation(1))
    reader.read(memoryview(data))
    # each byte outside of the arrays may be damaged, also where the length stays
    for at in (0, 3, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] = 0xC1
        with pytest.raises(PredictionError):
            reader.read(memoryview(damaged))
    assert plain(reader.read(memoryview(data))) == plain(read_message(data))


@pytest.mark.parametrize('value', [b'bytes', np.zeros((0, 3)), list(range(2000, 4000))])
def test_what_a_layout_would_keep_alive_or_is_long_is_parsed(parser, value):
    reader, data = RepeatedMessage(), packed(observation(1, value=value))
    for _ in range(2):
        assert plain(reader.read(memoryview(data))) == plain(read_message(data))
    assert parser.count == 2


def test_messages_that_always_differ_are_compared_no_more(parser):
    reader = RepeatedMessage()
    for time in range(MISSES_LIMIT + 2):
        reader.read(memoryview(packed(observation(1, time=float(time)))))
    data = memoryview(packed(observation(1, time=0.0)))
    reader.read(data)
    reader.read(data)
    assert parser.count == MISSES_LIMIT + 4


def test_a_message_without_arrays(parser):
    reader, data = RepeatedMessage(), msgpack.packb({'endpoint': 'reset'})
    assert [reader.read(memoryview(data)) for _ in range(2)] == [{'endpoint': 'reset'}] * 2
    assert parser.count == 1
