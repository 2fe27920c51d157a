# SPDX-License-Identifier: Apache-2.0
"""The note with the hash of a bag: it saves a reading, and never outlives its file."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from lerobot_serve.experience.bag_files import NotAnEpisode
from lerobot_serve.experience.scanning import HASH_FILE, noted_hash, read_hash, write_note


@pytest.fixture
def file(tmp_path):
    made = tmp_path / 'bag_0.mcap'
    made.write_bytes(os.urandom(3 << 20))
    return made


@pytest.fixture
def note(file):
    write_note(file.parent, read_hash(file))
    return file.parent / HASH_FILE


def test_the_hash_is_that_of_the_content(file):
    counted = []
    found = read_hash(file, counted.append)
    assert found.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (found.size_bytes, sum(counted)) == (3 << 20, 3 << 20)


def test_a_note_is_found_again(file, note):
    assert noted_hash(file) == read_hash(file)
    assert [each.name for each in file.parent.iterdir()] in (
        [file.name, HASH_FILE],
        [HASH_FILE, file.name],
    )


def test_a_file_that_changed_has_no_note(file, note):
    about = file.stat()
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert noted_hash(file) is None
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert noted_hash(file) is not None
    with file.open('ab') as stream:
        stream.write(b'x')
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert noted_hash(file) is None


def test_a_note_of_another_file_does_not_count(file, note):
    renamed = file.rename(file.with_name('other_0.mcap'))
    assert noted_hash(renamed) is None


@pytest.mark.parametrize(
    'change',
    [
        {'sha256': None},
        {'sha256': 'A' * 64},
        {'sha256': ['0' * 64]},
        {'size_bytes': True},
        {'size_bytes': float(3 << 20)},
        {'mtime_ns': float('nan')},
        {'more': 1},
    ],
)
def test_a_note_with_other_content_does_not_count(file, note, change):
    note.write_text(json.dumps({**json.loads(note.read_text()), **change}))
    assert noted_hash(file) is None


@pytest.mark.parametrize(
    'content', [b'', b'{', b'[]', b'null', b'\xff', b'[' * 4000, b'{"a":' + b' ' * 5000 + b'1}']
)
def test_a_note_that_is_none_does_not_count(file, note, content):
    note.write_bytes(content)
    assert noted_hash(file) is None


def test_a_link_or_a_pipe_is_no_note(file, note, tmp_path):
    note.rename(tmp_path / 'elsewhere')
    note.symlink_to(tmp_path / 'elsewhere')
    assert noted_hash(file) is None
    note.unlink()
    os.mkfifo(note)
    assert noted_hash(file) is None


def test_a_file_that_changes_while_it_is_read_has_no_hash(file):
    def grow(_: int) -> None:
        with file.open('ab') as stream:
            stream.write(b'x')

    with pytest.raises(NotAnEpisode, match='changed while it was read'):
        read_hash(file, grow)


def test_a_pipe_has_no_hash(tmp_path):
    os.mkfifo(tmp_path / 'x_0.mcap')
    with pytest.raises(NotAnEpisode, match='is not a regular file'):
        read_hash(tmp_path / 'x_0.mcap')
