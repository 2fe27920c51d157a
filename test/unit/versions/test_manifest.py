# SPDX-License-Identifier: Apache-2.0
"""
The manifest: what is read is what was written, and everything else is refused by name. Values of
other types, missing and unknown fields are in test/golden/refusals.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from hypothesis import example, given
from hypothesis import strategies as st
import pytest
from support.versions.version_rig import CREATED, SHA

from lerobot_serve.versions.errors import ManifestError
from lerobot_serve.versions.manifest import (
    FILE_LIMIT,
    is_path,
    Manifest,
    MANIFEST_LIMIT_BYTES,
    ManifestFile,
    parsed_manifest,
    read_manifest,
    SIZE_LIMIT_BYTES,
)

ID = 'act@0123456789abcdef'
FILES = tuple(
    ManifestFile(path=path, size_bytes=size, sha256=SHA)
    for path, size in (('config.json', 2), ('meta/info.json', 3))
)
WHOLE = Manifest(
    format_version=1,
    id=ID,
    policy_kind='lerobot',
    created=CREATED,
    files=FILES,
    parent='act@ffffffffffffffff',
    dataset_sha256='a' * 64,
    note='größer',
    hub=f'user/act@{"b" * 40}',
    sources=('https://host:8320', '/srv/versions'),
)
VALUES = json.loads(WHOLE.encoded()) | {
    'files': [{'path': 'config.json', 'size_bytes': 2, 'sha256': SHA}]
}
PARTS = st.text(st.characters(codec='utf-8'), min_size=1, max_size=12)


def parsed(**changes: object) -> Manifest:
    return parsed_manifest(json.dumps(VALUES | changes).encode(), 'here')


def refused(**changes: object) -> str:
    with pytest.raises(ManifestError, match=r'^here: ') as error:
        parsed(**changes)
    return str(error.value)


def test_what_is_written_is_read():
    assert parsed_manifest(WHOLE.encoded(), 'here') == WHOLE
    assert (WHOLE.name, WHOLE.size_bytes) == ('act', 5)
    assert WHOLE.file('meta/info.json') == FILES[1]
    assert WHOLE.file('../config.json') is None


def file_entry(**changes: object) -> dict[str, object]:
    return VALUES['files'][0] | changes


@pytest.mark.parametrize(
    'path',
    [
        '/etc/passwd',
        '../policy.json',
        'a/../../b',
        'a/./b',
        './a',
        'a//b',
        'a/',
        '.hidden',
        'a/.hidden',
        'a\\b',
        'a\0b',
        'a\nb',
        'version.json',
        'x' * 256,
        '/'.join('abcdefghi'),
        'ä' * 200,
    ],
)
def test_a_path_that_leaves_the_folder_or_hides_is_refused(path):
    text = refused(files=[file_entry(path=path)])
    assert 'path must be relative' in text
    assert 'publish' in text


@pytest.mark.parametrize('size', [SIZE_LIMIT_BYTES + 1, 10**30, 1.0, '2'])
def test_a_size_that_no_file_has_is_refused(size):
    assert 'files[0]: size_bytes must be 0 to' in refused(files=[file_entry(size_bytes=size)])


@pytest.mark.parametrize('sha256', [SHA[1:], SHA + '0', 'G' * 64, SHA.replace('0', 'A')])
def test_a_hash_of_another_form_is_refused(sha256):
    assert 'files[0]: sha256 must be' in refused(files=[file_entry(sha256=sha256)])


# with those of test/golden/refusals/manifest_rules.txt
MISTAKES = [
    ({'note': 'x' * 1001},),
    ({'files': [file_entry()] * 2},),
    ({'files': [file_entry(path='b'), file_entry(path='a')]},),
    ({'files': [file_entry(path='a'), file_entry(path='a/b')]},),
    ({'files': [file_entry(path=p, size_bytes=SIZE_LIMIT_BYTES) for p in 'ab']},),
]


@pytest.mark.golden
def test_each_rule_is_said(golden):
    golden.holds_refusals(
        'manifest_rules', lambda changes: parsed(**changes), ManifestError, more=MISTAKES
    )


def test_too_many_files_are_refused():
    files = [file_entry(path=f'{number:05}') for number in range(FILE_LIMIT + 1)]
    assert f'files must be a list of 1 to {FILE_LIMIT}' in refused(files=files)


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'null',
        b'[]',
        b'\xff',
        b'{"format_version": 1',
        b'[' * 100_000,
        b'{"format_version": 1, "format_version": 1}',
        b'{"format_version": NaN}',
        b'1' * 5000,
        b' ' * (MANIFEST_LIMIT_BYTES + 1),
    ],
    ids=lambda data: str(data[:20]),
)
def test_other_bytes_are_no_manifest(data):
    with pytest.raises(ManifestError, match='here: '):
        parsed_manifest(data, 'here')


def test_a_field_that_is_there_twice_is_refused():
    data = WHOLE.encoded().replace(b'"note":', b'"note": "", "note":', 1)
    with pytest.raises(ManifestError, match="duplicate 'note'"):
        parsed_manifest(data, 'here')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(VALUES)), JSON)
def test_any_value_in_any_field_is_taken_or_refused(name, value):
    try:
        data = json.dumps(VALUES | {name: value}).encode()
    except UnicodeEncodeError:
        return
    try:
        manifest = parsed_manifest(data, 'here')
    except ManifestError:
        return
    assert parsed_manifest(manifest.encoded(), 'here') == manifest


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(data):
    with pytest.raises(ManifestError):
        parsed_manifest(data, 'here')


@given(st.lists(PARTS, min_size=1, max_size=9).map('/'.join))
@example('a/../b')
@example('..')
@example('a/b')
def test_a_path_that_is_taken_stays_below_its_folder(path):
    if not is_path(path):
        return
    parts = PurePosixPath('/store/version', path).parts
    assert parts[:3] == ('/', 'store', 'version')
    assert not {'..', '.'} & set(parts)
    assert '/'.join(parts[3:]) == path


@pytest.mark.parametrize('kind', ['link', 'folder', 'pipe', 'missing'])
def test_a_manifest_is_a_regular_file(tmp_path, kind):
    import os

    file = tmp_path / 'version.json'
    (tmp_path / 'real').write_bytes(WHOLE.encoded())
    if kind == 'link':
        file.symlink_to('real')
    elif kind == 'folder':
        file.mkdir()
    elif kind == 'pipe':
        os.mkfifo(file)
    with pytest.raises(ManifestError, match=r'version\.json: '):
        read_manifest(tmp_path)
