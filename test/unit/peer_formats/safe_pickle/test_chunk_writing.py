# SPDX-License-Identifier: Apache-2.0
"""The pickle of a chunk, read as a client with torch reads it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.peer_classes import CHUNK_OF_SERVER, pickled, TimedAction, unpickled
from lerobot_serve.peer_formats.safe_pickle import PickleRefused, read_actions, write_actions

torch = pytest.importorskip('torch')
CHUNK = np.random.default_rng(1).standard_normal((50, 6)).astype(np.float32)


def test_a_client_reads_tensors_with_the_times_of_each_step():
    actions = unpickled(write_actions(CHUNK, timestamp=100.25, timestep=7, step_s=0.125))
    assert [type(each) for each in actions] == [TimedAction] * 50
    assert torch.equal(torch.stack([each.action for each in actions]), torch.tensor(CHUNK))
    assert [each.timestep for each in actions] == list(range(7, 57))
    assert [each.timestamp for each in actions] == [100.25 + 0.125 * n for n in range(50)]
    assert all(type(each.timestep) is int for each in actions)


def test_the_tensors_of_a_client_can_be_changed():
    first, second = unpickled(write_actions(CHUNK[:2], 0.0, 0, 0.1))
    first.action[0] = 5.0
    assert first.action[0] == 5.0
    assert second.action.tolist() == CHUNK[1].tolist()


@pytest.mark.parametrize('timestep', [0, 2**31 - 3, 2**40])
def test_long_runs(timestep):
    actions = unpickled(write_actions(CHUNK[:5], 0.0, timestep, 0.1))
    assert [each.timestep for each in actions] == list(range(timestep, timestep + 5))


def test_other_layouts_are_written_alike():
    plain = write_actions(CHUNK, 0.0, 0, 0.1)
    assert write_actions(np.asfortranarray(CHUNK), 0.0, 0, 0.1) == plain
    assert write_actions(CHUNK.astype('>f4'), 0.0, 0, 0.1) == plain


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'int64', 'uint8', 'float16'])
def test_the_chunk_of_lerobots_server_is_read(dtype):
    rows = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    sent = [TimedAction(0.5 * n, n, row) for n, row in enumerate(rows)]
    read = read_actions(pickled(sent))
    assert np.stack([each.action for each in read]).tolist() == rows.tolist()
    assert read[1].action.dtype == np.dtype(dtype)
    assert [(each.timestamp, each.timestep) for each in read] == [(0.0, 0), (0.5, 1), (1.0, 2)]


def test_a_chunk_that_lerobot_wrote_is_read():
    read = read_actions(CHUNK_OF_SERVER)
    assert [each.action.tolist() for each in read] == [[0, 1, 2], [3, 4, 5]]
    assert [(each.timestamp, each.timestep) for each in read] == [(1.0, 0), (2.0, 1)]


def test_a_column_of_a_tensor_is_read():
    columns = torch.arange(12.0).reshape(3, 4).T
    read = read_actions(pickled([TimedAction(0.0, 0, column) for column in columns]))
    assert [each.action.tolist() for each in read] == columns.tolist()


def rewritten(data: bytes, before: bytes, after: bytes) -> bytes:
    assert before in data
    return data.replace(before, after)


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        # size, stride and offset: 100 numbers, a stride of 0, behind the end
        (b'K\x04\x85\x94K\x01\x85', b'Kd\x85\x94K\x01\x85'),
        (b'K\x04\x85\x94K\x01\x85', b'Kd\x85\x94K\x00\x85'),
        (b'K\x00K\x04\x85', b'K\x01K\x04\x85'),
        (b'K\x00K\x04\x85', b'J\xff\xff\xff\xffK\x04\x85'),
        (b'FloatStorage', b'FloatStorags'),
        (b'_load_from_bytes', b'_load_from_bytez'),
    ],
)
def test_a_tensor_that_looks_elsewhere_is_refused(before, after):
    data = pickled([TimedAction(0.0, 0, torch.arange(4.0))])
    read_actions(data)
    with pytest.raises(PickleRefused):
        read_actions(rewritten(data, before, after))
