# SPDX-License-Identifier: Apache-2.0
"""The fingerprint: it changes with what decides what a policy does, and with nothing else."""

from __future__ import annotations

from pathlib import Path
import re
import tempfile

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.policies.files import policy_folder as module
from lerobot_serve.policies.files.policy_folder import fingerprint

CONTENT = {'config.json': b'{}', 'model.safetensors': b'0123456789'}


def write(folder: Path, content: dict[str, bytes]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in content]


def of(folder: Path, content: dict[str, bytes]) -> str:
    return fingerprint('act', write(folder, content))


def test_it_is_the_id_and_sixteen_digits(tmp_path):
    assert re.fullmatch(r'act@[0-9a-f]{16}', of(tmp_path, CONTENT))


def test_the_id_is_part_of_it(tmp_path):
    files = write(tmp_path, CONTENT)
    assert fingerprint('act', files).split('@')[1] == fingerprint('pi0', files).split('@')[1]
    assert fingerprint('pi0', files).startswith('pi0@')


def test_neither_the_folder_nor_the_order_matters(tmp_path):
    one, other = write(tmp_path / 'a', CONTENT), write(tmp_path / 'b' / 'c', CONTENT)
    assert fingerprint('act', one) == fingerprint('act', other[::-1])


@pytest.mark.parametrize(
    'content',
    [
        {'config.json': b'{}'},
        {**CONTENT, 'more': b''},
        {'config.yaml': b'{}', 'model.safetensors': b'0123456789'},
        {'config.json': b'{}0', 'model.safetensors': b'123456789'},
        {'config.json': CONTENT['model.safetensors'], 'model.safetensors': b'{}'},
    ],
)
def test_a_file_more_or_less_another_name_or_another_border_changes_it(tmp_path, content):
    assert of(tmp_path / 'a', CONTENT) != of(tmp_path / 'b', content)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_any_byte_changes_it(data, draw):
    place = draw.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    changed[place] ^= draw.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        before = of(Path(folder) / 'a', {'weights': data})
        assert of(Path(folder) / 'b', {'weights': data}) == before
        assert of(Path(folder) / 'b', {'weights': bytes(changed)}) != before


def test_a_file_larger_than_a_block_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'BLOCK_BYTES', 4)
    assert of(tmp_path / 'a', {'w': b'12345678X'}) != of(tmp_path / 'b', {'w': b'12345678Y'})


def test_a_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        fingerprint('act', [tmp_path / 'nothing'])


def test_each_block_is_followed_by_a_pause(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(module, 'give_way', lambda: pauses.append(None))
    monkeypatch.setattr(module, 'BLOCK_BYTES', 4)
    whole = of(tmp_path, CONTENT)
    assert len(pauses) == sum(-(-len(data) // 4) for data in CONTENT.values())
    monkeypatch.undo()
    assert of(tmp_path, CONTENT) == whole
