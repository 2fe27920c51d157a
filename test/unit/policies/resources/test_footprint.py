# SPDX-License-Identifier: Apache-2.0
"""What a folder takes in memory is read from headers, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
import struct
import zipfile

import pytest

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.file_headers import HEADER_LIMIT_BYTES, read_json, tensor_headers
from lerobot_serve.policies.runtime.memory import declared_bytes

GIB = 1 << 30
COMMIT = 'a' * 40


def write_tensors(file: Path, entries: object, data_bytes: int) -> Path:
    """Write a safetensors file whose data is a hole: nothing on disk, all of it in memory."""
    header = json.dumps(entries).encode()
    with open(file, 'wb') as handle:
        handle.write(struct.pack('<Q', len(header)) + header)
        handle.truncate(8 + len(header) + data_bytes)
    return file


def floats(count: int, begin: int = 0) -> dict[str, object]:
    return {'dtype': 'F32', 'shape': [count], 'data_offsets': [begin, begin + 4 * count]}


def test_a_sparse_file_counts_as_what_it_declares(tmp_path):
    count = 6 * GIB // 4
    file = write_tensors(tmp_path / 'model.safetensors', {'mean': floats(count)}, 4 * count)
    assert file.stat().st_blocks * 512 < 1 << 16
    assert declared_bytes(tmp_path) == 6 * GIB


def test_an_archive_counts_as_what_it_unpacks_to(tmp_path):
    with zipfile.ZipFile(tmp_path / 'program.pt2', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('program/data', bytes(50_000_000))
    assert (tmp_path / 'program.pt2').stat().st_size < 100_000
    assert declared_bytes(tmp_path) == 50_000_000


def test_what_a_policy_names_counts_too(tmp_path, monkeypatch):
    folder, vlm, cache = tmp_path / 'policy', tmp_path / 'vlm', tmp_path / 'cache'
    snapshot = cache / 'models--lab--words' / 'snapshots' / COMMIT
    refs = cache / 'models--lab--words' / 'refs'
    for each in (folder, vlm, snapshot, refs):
        each.mkdir(parents=True)
    (refs / 'main').write_text(COMMIT)
    monkeypatch.setenv('HF_HUB_CACHE', str(cache))
    named = {'type': 'smolvla', 'vlm_model_name': str(vlm)}
    config = json.dumps(named | {'load_vlm_weights': True})
    step = {'config': {'tokenizer_name': 'lab/words'}, 'state_file': 'mean.safetensors'}
    steps = json.dumps({'steps': [step]})
    (folder / 'config.json').write_text(config)
    (folder / 'policy_preprocessor.json').write_text(steps)
    write_tensors(vlm / 'model.safetensors', {'w': floats(1000)}, 4000)
    write_tensors(snapshot / 'model.safetensors', {'w': floats(1000)}, 4000)
    write_tensors(folder / 'mean.safetensors', {'m': floats(6)}, 24)
    write_tensors(folder / 'optimizer.safetensors', {'m': floats(60)}, 240)
    (snapshot / 'tokenizer.json').write_text('x' * 77)
    # the weights that lie beside a tokenizer are not loaded, nor are those of an optimizer
    assert declared_bytes(folder) == len(config) + len(steps) + 24 + 4000 + 77
    (folder / 'config.json').write_text(json.dumps(named))
    assert declared_bytes(folder) == len(json.dumps(named)) + len(steps) + 24 + 77
    (refs / 'main').unlink()
    with pytest.raises(PolicyError, match=r"needs 'lab/words'.*hf download lab/words"):
        declared_bytes(folder)


@pytest.mark.parametrize('name', ['vlm', './vlm', '../vlm', 'a/../../b', '~/vlm', '/nope'])
def test_an_asset_is_a_full_path_or_an_id(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'vlm').mkdir()
    (tmp_path / 'config.json').write_text(json.dumps({'vlm_model_name': name}))
    with pytest.raises(PolicyError, match='full path of a folder on this machine'):
        declared_bytes(tmp_path)


def test_a_path_that_is_no_folder_declares_nothing():
    assert declared_bytes(Path('joints=6,chunk=100,cameras=,fps=30')) == 0


DAMAGED = {
    'gap': ({'a': floats(2), 'b': floats(2, 12)}, 20),
    'overlap': ({'a': floats(2), 'b': floats(2, 4)}, 12),
    'short': ({'a': floats(2)}, 4),
    'long': ({'a': floats(2)}, 12),
    'dtype': ({'a': floats(2) | {'dtype': 'OBJECT'}}, 8),
    'negative': ({'a': floats(2) | {'shape': [-2]}}, 8),
    'not a number': ({'a': floats(2) | {'shape': [True]}}, 8),
    'rank': ({'a': floats(1) | {'shape': [1] * 9}}, 4),
    'no offsets': ({'a': {'dtype': 'F32', 'shape': [2]}}, 8),
    'a list': ([], 0),
    'text': ('text', 0),
}


@pytest.mark.parametrize('case', DAMAGED)
def test_a_damaged_header_is_refused(tmp_path, case):
    file = write_tensors(tmp_path / 'model.safetensors', *DAMAGED[case])
    with pytest.raises(PolicyError, match='is not a readable safetensors file'):
        tensor_headers(file)


def test_a_header_is_bounded_before_it_is_read(tmp_path):
    file = tmp_path / 'model.safetensors'
    with open(file, 'wb') as handle:
        handle.write(struct.pack('<Q', HEADER_LIMIT_BYTES + 1))
        handle.truncate(40 * GIB)
    with pytest.raises(PolicyError, match='its header has'):
        tensor_headers(file)


def test_a_json_file_is_bounded_before_it_is_read(tmp_path):
    file = tmp_path / 'config.json'
    with open(file, 'wb') as handle:
        handle.truncate(40 * GIB)
    with pytest.raises(PolicyError, match='has more than 4194304 bytes'):
        read_json(file)
    file.write_text('[' * 100_000)
    with pytest.raises(PolicyError, match='not readable JSON'):
        read_json(file)
