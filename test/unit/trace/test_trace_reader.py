# SPDX-License-Identifier: Apache-2.0
"""Reading: every part in order, damage where it is, and what is refused."""

from __future__ import annotations

from pathlib import Path
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.trace_rig import header, Trace

from lerobot_serve.tools.traces import reader as module
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.tools.traces.trace_run import TraceQuery
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import fields_of
from lerobot_serve.trace.format.run_files import TraceError

HEADER = encode(header())
LINES = [encode({'kind': 'incident', 'mono_ns': n, 'name': f'number {n}'}) for n in range(5)]


@pytest.fixture
def file(tmp_path):
    return tmp_path / 'edge.jsonl'


def parts(trace):
    trace.note(*(f'{number:04}' for number in range(200)))
    trace.writer.close()
    return trace.files()


def test_lines_are_counted_from_the_header_on(file):
    file.write_bytes(HEADER + LINES[0] + LINES[1])
    items = list(read_records(file))
    assert [number for number, _ in items] == [1, 2, 3]
    assert items[2][1] == {'kind': 'incident', 'mono_ns': 1, 'name': 'number 1'}


def test_any_part_leads_to_the_whole_run(tmp_path):
    files = parts(Trace(tmp_path, limit_bytes=4096, keep_files=99))
    # more than ten, so that 10 must not come before 2
    trace = Trace(tmp_path, 'other', limit_bytes=4096, keep_files=99)
    trace.note(*('x' * 3000 for _ in range(12)), 'end')
    trace.writer.close()
    wanted = [f'{number:04}' for number in range(200)]
    for path in (*files, str(files[0])):
        names = [
            record['name'] for _, record in read_records(path) if record['kind'] == 'incident'
        ]
        assert names == wanted
    heads = [record['part'] for record in trace.read('header')]
    assert heads == list(range(len(heads)))
    assert len(heads) > 10


def test_a_run_whose_first_part_was_removed_has_its_old_name(tmp_path):
    files = parts(Trace(tmp_path, limit_bytes=4096, keep_files=2))
    assert tmp_path / 'edge.jsonl' not in files
    assert list(read_records(tmp_path / 'edge.jsonl')) == list(read_records(files[0]))


def test_a_part_that_goes_while_it_is_read_is_left_out(tmp_path):
    files = parts(Trace(tmp_path, limit_bytes=4096, keep_files=99))
    items = read_records(files[0])
    next(items)
    (tmp_path / 'edge.1.jsonl').unlink()
    heads = [record['part'] for _, record in items if record['kind'] == 'header']
    assert heads[0] == 2


@pytest.mark.parametrize('is_folder', [True, False])
def test_a_folder_is_listed_once_however_many_runs_it_has(tmp_path, monkeypatch, is_folder):
    names = [f'edge-{number}{part}' for number in range(50) for part in ('', '.1')]
    # its first part was removed
    names += ['edge-99.3', 'edge-99.4']
    for name in names:
        (tmp_path / f'{name}.jsonl').write_bytes(HEADER)
    listed = []
    for method in ('glob', 'rglob'):
        plain = getattr(Path, method)
        monkeypatch.setattr(Path, method, lambda *given, of=plain: listed.append(1) or of(*given))
    query = TraceQuery([tmp_path] if is_folder else sorted(tmp_path.iterdir()))
    for _ in range(2):
        assert sum(1 for _ in query.by_run()) == len(names)
    assert len(query.runs) == 51
    assert len(listed) <= 2


def test_a_part_that_was_begun_since_is_read_too(tmp_path, file):
    file.write_bytes(HEADER)
    query = TraceQuery([file])
    for number in (1, 2):
        (tmp_path / f'edge.{number}.jsonl').write_bytes(HEADER)
    assert sum(1 for _ in query.by_run()) == 3


def test_parts_that_are_gone_are_listed_again(tmp_path, file):
    file.write_bytes(HEADER)
    query = TraceQuery([file])
    file.unlink()
    for number in (7, 8):
        (tmp_path / f'edge.{number}.jsonl').write_bytes(HEADER)
    assert sum(1 for _ in query.by_run()) == 2


def test_a_run_is_read_once_however_it_is_named(tmp_path, file):
    for path in (file, tmp_path / 'edge.1.jsonl'):
        path.write_bytes(HEADER)
    links = tmp_path / 'links'
    links.mkdir()
    (links / 'today.jsonl').symlink_to(tmp_path / 'edge.1.jsonl')
    query = TraceQuery([links, file, tmp_path / 'edge.1.jsonl', tmp_path])
    assert [run.path for run in query.runs] == [file]
    assert sum(1 for _ in query.by_run()) == 2


def test_a_file_of_another_name_is_read_alone(tmp_path, file):
    file.write_bytes(HEADER + LINES[0])
    copy = tmp_path / 'my.copy.jsonl'
    copy.write_bytes(HEADER + LINES[1])
    assert [record.get('name') for _, record in read_records(copy)] == [None, 'number 1']
    assert len(list(read_records(file))) == 2


@settings(max_examples=60)
@given(cut=st.integers(0, len(b''.join((HEADER, *LINES)))))
def test_a_torn_last_line_wherever_it_is_torn(tmp_path_factory, cut):
    data = b''.join((HEADER, *LINES))[:cut]
    file = tmp_path_factory.mktemp('trace') / 'edge.jsonl'
    file.write_bytes(data)
    records = [record for _, record in read_records(file)]
    rest = data.rpartition(b'\n')[2]
    torn = [record for record in records if record['kind'] == 'damaged']
    assert len(records) - len(torn) == data.count(b'\n') + (rest + b'\n' in (HEADER, *LINES))
    assert [record['reason'] for record in torn] == ['torn'] * (len(torn))
    assert len(torn) == (rest != b'' and rest + b'\n' not in (HEADER, *LINES))


def test_damage_in_the_middle_is_told_and_reading_goes_on(file):
    file.write_bytes(HEADER + LINES[0] + b'\xff{"kind\n' + b'[1]\n' + LINES[1])
    items = list(read_records(file))
    assert items[2] == (
        3,
        {'kind': 'damaged', 'file': 'edge.jsonl', 'reason': 'no_record', 'text': '\ufffd{"kind\n'},
    )
    assert items[3][1]['reason'] == 'no_record'
    assert items[4] == (5, {'kind': 'incident', 'mono_ns': 1, 'name': 'number 1'})


@settings(max_examples=100)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_whatever_byte_is_damaged_all_other_lines_are_read(tmp_path_factory, at, byte):
    data = bytearray(b''.join(LINES))
    data[at % len(data)] = byte
    file = tmp_path_factory.mktemp('trace') / 'edge.jsonl'
    file.write_bytes(HEADER + data)
    seen = [encode(record) for _, record in read_records(file)]
    # a line end that is damaged takes the line behind it along, too
    assert sum(line in seen for line in LINES) >= len(LINES) - 2


def test_a_line_without_end_is_left_out(file, monkeypatch):
    monkeypatch.setattr(module, 'LINE_LIMIT', 1000)
    file.write_bytes(HEADER + LINES[0] + b'x' * 5500 + b'\n' + LINES[1] + b'y' * 3000)
    items = list(read_records(file))
    assert [record.get('reason', '') for _, record in items] == [
        '',
        '',
        'too_long',
        '',
        'too_long',
    ]
    assert [number for number, _ in items] == [1, 2, 3, 4, 5]
    assert all(len(record.get('text', '')) <= module.SHOWN_BYTES for _, record in items)


def test_a_long_trace_takes_little_memory(file):
    with open(file, 'wb') as out:
        out.write(HEADER)
        for _ in range(20_000):
            out.write(LINES[0])
    assert file.stat().st_size > 1_000_000
    tracemalloc.start()
    count = sum(1 for _ in read_records(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_001
    assert peak < 300_000


def test_unknown_kinds_and_fields_are_handed_on(file):
    new = encode({'kind': 'of_later_days', 'new_field': {'deep': [1]}})
    file.write_bytes(encode(fields_of(header()) | {'later': 1}) + new)
    assert [record['kind'] for _, record in read_records(file)] == ['header', 'of_later_days']


@pytest.mark.parametrize('version', [1, 3])
@pytest.mark.parametrize('part', ['edge.jsonl', 'edge.1.jsonl'])
def test_another_version_is_refused(tmp_path, file, part, version):
    file.write_bytes(HEADER)
    (tmp_path / part).write_bytes(
        encode(fields_of(header()) | {'schema_version': version, 'version': '9.1'})
    )
    with pytest.raises(
        TraceError, match=rf'schema version {version}, this program reads 2; .*9\.1'
    ):
        list(read_records(file))


@pytest.mark.parametrize('version', [None, '1', 1.0, True])
def test_a_version_that_is_no_number_is_refused(file, version):
    file.write_bytes(encode(fields_of(header()) | {'schema_version': version}))
    with pytest.raises(TraceError, match='must be a number'):
        list(read_records(file))


@pytest.mark.parametrize('data', [LINES[0], b'any text\nmore\n', b'{"a": 1}', b'\0\n'])
def test_what_is_no_trace_is_refused(file, data):
    file.write_bytes(data)
    with pytest.raises(TraceError, match='does not begin with a header'):
        list(read_records(file))


def test_a_header_may_be_damaged_where_another_one_stands_before_it(tmp_path):
    files = parts(Trace(tmp_path, limit_bytes=4096, keep_files=99))
    data = files[0].read_bytes()
    files[0].write_bytes(b'#' + data)
    kinds = [record['kind'] for _, record in read_records(files[1])]
    assert kinds.count('damaged') == 1


def test_where_nothing_is(tmp_path):
    for path in (tmp_path / 'edge.jsonl', tmp_path, tmp_path / 'none'):
        with pytest.raises(TraceError, match='is not a trace'):
            read_records(path)


def test_an_empty_file_holds_nothing(file):
    file.write_bytes(b'')
    assert list(read_records(file)) == []
