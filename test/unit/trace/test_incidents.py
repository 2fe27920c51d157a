# SPDX-License-Identifier: Apache-2.0
"""Incidents on disk: what was written is read again, also by others, and damage is said."""

from __future__ import annotations

import errno
import json
import os
import struct
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.processes.full_disk import files_of_at_most

from lerobot_serve.trace.format import incident_file
from lerobot_serve.trace.format.incident_file import (
    IncidentError,
    read_exchanges,
    read_incident,
    RecordedExchange,
    write_incident,
)

WHY_NOT = 'safetensors is not installed (TORCH=none)'
ABOUT = {'code': 'not_finite', 'client_id': 'robot_1', 'seq': 3}
PAIRS = [
    RecordedExchange(b'request 1', b'answer 1', {'seq': 2, 'status': 'ok'}),
    RecordedExchange(bytes(range(256)) * 40, b'', {'seq': 3, 'status': 'not_finite', 'text': 'ü'}),
]
NAMES = ['reply.0', 'reply.1', 'request.0', 'request.1']


@pytest.fixture
def safetensors():
    """Return the library of others, which writes and reads the same files."""
    pytest.importorskip('safetensors.numpy', reason=WHY_NOT)
    import safetensors

    return safetensors


def test_what_was_written_is_read_again(tmp_path):
    path = tmp_path / 'one.safetensors'
    size = write_incident(path, PAIRS, ABOUT)
    assert read_exchanges(path) == PAIRS
    assert read_incident(str(path)) == (ABOUT, PAIRS)
    assert os.listdir(tmp_path) == [path.name]
    assert path.stat().st_size == size


def test_anybody_who_reads_safetensors_can_read_it(tmp_path, safetensors):
    path = tmp_path / 'one.safetensors'
    write_incident(path, PAIRS, ABOUT)
    with safetensors.safe_open(path, framework='numpy') as file:
        assert sorted(file.keys()) == NAMES
        assert file.metadata()['format'] == 'lerobot_serve.incident'
        assert json.loads(file.metadata()['about']) == ABOUT
        assert json.loads(file.metadata()['exchanges']) == [pair.info for pair in PAIRS]
        for number, pair in enumerate(PAIRS):
            assert file.get_tensor(f'request.{number}').tobytes() == pair.request
            assert file.get_tensor(f'reply.{number}').tobytes() == pair.answer


def test_what_others_write_is_read(tmp_path, safetensors):
    path = tmp_path / 'one.safetensors'
    write_incident(path, PAIRS, ABOUT)
    with safetensors.safe_open(path, framework='numpy') as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        safetensors.numpy.save_file(tensors, tmp_path / 'two.safetensors', file.metadata())
    assert read_incident(tmp_path / 'two.safetensors') == (ABOUT, PAIRS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_any_bytes_come_back(tmp_path_factory, raws):
    path = tmp_path_factory.mktemp('any') / 'one.safetensors'
    pairs = [RecordedExchange(*raw, {'number': number}) for number, raw in enumerate(raws)]
    write_incident(path, pairs)
    assert read_incident(path) == ({}, pairs)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.binary(max_size=4))
def test_damage_is_told_or_changes_no_structure(tmp_path_factory, at, what):
    path = tmp_path_factory.mktemp('damaged') / 'one.safetensors'
    write_incident(path, PAIRS, ABOUT)
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + what + raw[at + len(what) :])
    try:
        assert len(read_exchanges(path)) <= len(PAIRS)
    except IncidentError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize('length', [0, 7, 8, 100, 500])
def test_a_file_that_was_cut_off_is_refused(tmp_path, length):
    path = tmp_path / 'one.safetensors'
    write_incident(path, PAIRS, ABOUT)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(IncidentError, match='use a file captured by a policy_server'):
        read_exchanges(path)


def test_other_tensors_and_later_versions_are_refused(tmp_path, monkeypatch, safetensors):
    path = tmp_path / 'one.safetensors'
    safetensors.numpy.save_file({'weights': np.zeros(3)}, path)
    with pytest.raises(IncidentError, match='is not an incident file'):
        read_exchanges(path)
    monkeypatch.setattr(incident_file, 'VERSION', 3)
    write_incident(path, PAIRS)
    monkeypatch.undo()
    with pytest.raises(IncidentError, match='has version 3, this program reads 2'):
        read_exchanges(path)


@pytest.mark.parametrize('offsets', [[0, 10**9], [-1, 4], [5, 4], [0], ['0', 1], None])
def test_nothing_is_read_from_outside_the_file(tmp_path, offsets):
    path = tmp_path / 'one.safetensors'
    entry = {'dtype': 'U8', 'shape': [4], 'data_offsets': offsets}
    metadata = {'format': incident_file.FORMAT, 'version': '2', 'exchanges': '[{}]', 'about': '{}'}
    head = json.dumps({'__metadata__': metadata, 'request.0': entry, 'reply.0': entry}).encode()
    path.write_bytes(struct.pack('<Q', len(head)) + head + b'some bytes')
    with pytest.raises(IncidentError, match='is damaged'):
        read_exchanges(path)


def test_requests_that_name_the_same_bytes_are_refused(tmp_path):
    path, size = tmp_path / 'one.safetensors', 100_000
    entry = {'dtype': 'U8', 'shape': [size], 'data_offsets': [0, size]}
    metadata = {
        'format': incident_file.FORMAT,
        'version': '2',
        'exchanges': json.dumps([{}] * 300),
        'about': '{}',
    }
    entries = dict.fromkeys(incident_file.block_names(300), entry)
    head = json.dumps({'__metadata__': metadata, **entries}).encode()
    path.write_bytes(struct.pack('<Q', len(head)) + head + bytes(size))
    tracemalloc.start()
    with pytest.raises(IncidentError, match='its requests and replies overlap'):
        read_exchanges(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * size


def test_a_file_that_is_not_there_is_an_incident_error(tmp_path):
    with pytest.raises(IncidentError, match='No such file'):
        read_exchanges(tmp_path / 'none.safetensors')


@pytest.mark.parametrize('size', [0, 100, 5_000])
def test_a_disk_that_is_full_leaves_nothing(tmp_path, size):
    with files_of_at_most(size), pytest.raises(OSError, match='File too large'):
        write_incident(tmp_path / 'one.safetensors', PAIRS, ABOUT)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_whole_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(incident_file.os, 'replace', full)
    with pytest.raises(OSError, match='No space'):
        write_incident(tmp_path / 'one.safetensors', PAIRS)
    assert os.listdir(tmp_path) == []
