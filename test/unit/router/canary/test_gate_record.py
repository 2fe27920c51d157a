# SPDX-License-Identifier: Apache-2.0
"""The record of a gate: written as a whole, read with suspicion, and what a router makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import msgspec
import pytest

from lerobot_serve.router.canary.gate_record import (
    ADMITTED,
    GateRecord,
    GateRecords,
    read_record,
    record_path,
    VERDICTS,
    write_record,
)

RECORD = GateRecord(
    'reach_v2@f0ed18fdea8b3055',
    'reach_v1@0deb546c7cd4f591',
    'passed',
    '127 episodes, 530 requests',
    127,
    530,
    'ab' * 32,
    '2026-11-26T20:00:00+00:00',
    ({'name': 'cage', 'value': None},),
    (('memory', 'a larger encoder', 'kim@lab'),),
)


def test_it_is_read_as_it_was_written(tmp_path):
    path = write_record(tmp_path / 'gates', RECORD)
    assert read_record(path) == RECORD
    assert [each.name for each in path.parent.iterdir()] == ['f0ed18fdea8b3055.json']


@given(st.text(max_size=40))
def test_no_fingerprint_leaves_the_folder(fingerprint):
    path = record_path(Path('/gates'), fingerprint)
    assert path.parent == Path('/gates')
    assert path.name not in ('.', '..')


@pytest.mark.parametrize('champion', ['reach_v1@0deb546c7cd4f591', 'other@0deb546c7cd4f591'])
@pytest.mark.parametrize('verdict', VERDICTS)
def test_only_a_gate_that_passed_admits(tmp_path, verdict, champion):
    """The name in a fingerprint is free."""
    write_record(tmp_path, msgspec.structs.replace(RECORD, verdict=verdict))
    found = GateRecords(tmp_path).obstacle('named@f0ed18fdea8b3055', champion)
    assert (not found) is (verdict in ADMITTED)
    if found:
        assert RECORD.text in found


@pytest.mark.parametrize(
    ('candidate', 'champion', 'said'),
    [
        ('reach_v3@98292a3a3e9abe0e', 'reach_v1@0deb546c7cd4f591', 'it has no gate record in'),
        ('reach_v2@f0ed18fdea8b3055', 'reach_v9@1111111111111111', 'slot a serves reach_v9@1111'),
    ],
)
def test_what_is_missing_has_a_remedy(tmp_path, candidate, champion, said):
    write_record(tmp_path, RECORD)
    found = GateRecords(tmp_path).obstacle(candidate, champion)
    assert said in found
    assert (
        f'lerobot-serve gate RECORDING --candidate DIR --parent DIR --records {tmp_path}' in found
    )


def test_without_a_champion_or_a_digest_none_is_admitted(tmp_path):
    write_record(tmp_path, RECORD)
    records = GateRecords(tmp_path)
    assert 'slot a serves no policy yet' in records.obstacle(RECORD.candidate, '')
    assert 'has no digest' in records.obstacle('named@', RECORD.parent)


def test_what_is_no_candidate_needs_no_record(tmp_path):
    records = GateRecords(tmp_path)
    assert records.obstacle('', 'reach_v1@0deb546c7cd4f591') == ''
    assert records.obstacle('a@0deb546c7cd4f591', 'b@0deb546c7cd4f591') == ''


def test_a_file_that_changes_is_read_again(tmp_path):
    records, champion = GateRecords(tmp_path), RECORD.parent
    assert 'no gate record' in records.obstacle(RECORD.candidate, champion)
    path = write_record(tmp_path, RECORD)
    assert records.obstacle(RECORD.candidate, champion) == ''
    write_record(tmp_path, msgspec.structs.replace(RECORD, verdict='refused', text='NaN'))
    assert 'refused: NaN' in records.obstacle(RECORD.candidate, champion)
    path.unlink()
    assert 'no gate record' in records.obstacle(RECORD.candidate, champion)


def test_a_record_under_the_name_of_another_policy_admits_none(tmp_path):
    write_record(tmp_path, RECORD)
    os.rename(record_path(tmp_path, RECORD.candidate), record_path(tmp_path, 'x@98292a3a3e9abe0e'))
    found = GateRecords(tmp_path).obstacle('x@98292a3a3e9abe0e', RECORD.parent)
    assert 'its gate record is that of reach_v2@' in found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(['format', *GateRecord.__struct_fields__]), JSON)
def test_a_damaged_record_is_refused_or_whole(tmp_path_factory, name, value):
    folder = tmp_path_factory.mktemp('gates')
    path = write_record(folder, RECORD)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    found = GateRecords(folder).obstacle(RECORD.candidate, RECORD.parent)
    assert isinstance(found, str)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_record_admit_none(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp('gates')
    record_path(folder, RECORD.candidate).write_bytes(raw)
    found = GateRecords(folder).obstacle(RECORD.candidate, RECORD.parent)
    assert 'cannot be read' in found


def test_a_folder_and_a_huge_file_admit_none(tmp_path):
    path = record_path(tmp_path, RECORD.candidate)
    path.mkdir()
    assert 'cannot be read' in GateRecords(tmp_path).obstacle(RECORD.candidate, RECORD.parent)
    path.rmdir()
    path.write_bytes(b' ' * (2 << 20))
    assert 'more than' in GateRecords(tmp_path).obstacle(RECORD.candidate, RECORD.parent)


@pytest.mark.parametrize('name', ['format', *GateRecord.__struct_fields__])
def test_a_record_without_a_field_is_refused(tmp_path, name):
    path = write_record(tmp_path, RECORD)
    values = json.loads(path.read_text())
    del values[name]
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match='not a gate record'):
        read_record(path)
