# SPDX-License-Identifier: Apache-2.0
"""The writer in trouble: a disk that fails, a process that is killed; all is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.paths import REPOSITORY
from support.processes.full_disk import files_of_at_most
from support.tools.trace_rig import fill, full_disk, Trace

from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.trace.format import records
from lerobot_serve.trace.writing import writer as module
from lerobot_serve.trace.writing.writer import RETRY_NS


@pytest.fixture
def trace(tmp_path):
    return Trace(tmp_path / 'trace')


def test_a_disk_that_is_full_from_the_start(trace, monkeypatch):
    with full_disk(monkeypatch):
        trace.note('lost')
        trace.note('lost too')
    (told,) = trace.told
    assert f'{trace.folder}: write failed (No space left on device)' in told
    assert trace.writer.losses == {'trace_failed': 2}
    trace.now_ns = RETRY_NS - 1
    trace.note('still lost')
    assert trace.writer.path is None
    trace.now_ns = RETRY_NS
    trace.note('kept')
    trace.writer.close()
    assert trace.names() == ['kept']
    (drop,) = trace.read('drop')
    assert (drop['reason'], drop['item'], drop['count']) == ('trace_failed', 'incident', 3)
    assert len(trace.told) == 1


def test_a_disk_that_becomes_full(trace):
    trace.note('one')
    fill(trace.writer)
    trace.note('lost', 'lost')
    trace.note('lost')
    (told,) = trace.told
    assert str(trace.folder / 'edge.jsonl') in told
    assert '30 s' in told
    trace.now_ns = RETRY_NS
    trace.note('two')
    trace.writer.close()
    assert trace.names() == ['one', 'two']
    assert [head.get('continues') for head in trace.read('header')] == [None, 'edge.jsonl']
    assert [drop['count'] for drop in trace.read('drop')] == [3]
    assert trace.read('footer')[-1]['records_lost'] == {'trace_failed': 3}


def test_each_time_it_fails_again_is_told(trace):
    for number in range(3):
        trace.now_ns = number * RETRY_NS
        trace.note('kept')
        fill(trace.writer)
        trace.note('lost')
    assert len(trace.told) == 3
    assert len(trace.files()) == 3


def test_a_disk_that_stays_full_is_told_once(trace, monkeypatch):
    with full_disk(monkeypatch):
        for number in range(5):
            trace.now_ns = number * RETRY_NS
            trace.note('lost')
    assert len(trace.told) == 1
    assert not trace.files()


def test_a_full_disk_at_the_end_is_no_error(trace):
    trace.note('one')
    fill(trace.writer)
    trace.writer.close()
    assert trace.names() == ['one']
    assert len(trace.told) == 1


def test_a_disk_that_is_full_when_the_next_part_begins(tmp_path, monkeypatch):
    trace = Trace(tmp_path, limit_bytes=4096)
    trace.note('x' * 3000)
    with full_disk(monkeypatch):
        trace.note('y' * 3000)
    trace.now_ns = RETRY_NS
    trace.note('z')
    trace.writer.close()
    assert [name[0] for name in trace.names()] == ['x', 'z']
    assert [foot['end_reason'] for foot in trace.read('footer')] == ['rotated', 'closed']
    assert trace.writer.losses == {'trace_failed': 1}


@settings(max_examples=30)
@given(more=st.integers(0, 200))
def test_half_a_line_is_the_last_of_its_part(tmp_path_factory, more):
    trace = Trace(tmp_path_factory.mktemp('trace'))
    trace.note('one')
    size = trace.writer.path.stat().st_size
    with files_of_at_most(size + more):
        for _ in range(6):
            trace.note('perhaps')
    trace.now_ns = RETRY_NS
    trace.note('two')
    trace.writer.close()
    kept = trace.names()
    lost = trace.writer.losses.get('trace_failed', 0)
    assert kept == ['one'] + ['perhaps'] * (6 - lost) + ['two']
    assert sum(drop['count'] for drop in trace.read('drop')) == lost
    assert {item['reason'] for item in trace.read('damaged')} <= {'torn'}


def test_a_header_that_does_not_fit_leaves_no_file(tmp_path):
    trace = Trace(tmp_path)
    with files_of_at_most(20):
        trace.note('lost')
    assert not trace.files()
    trace.now_ns = RETRY_NS
    trace.note('kept')
    trace.writer.close()
    assert trace.files() == [tmp_path / 'edge.jsonl']


@pytest.mark.parametrize('is_folder', [True, False])
def test_what_is_removed_is_noticed(trace, is_folder):
    trace.note('gone')
    if is_folder:
        shutil.rmtree(trace.folder)
    else:
        trace.writer.path.unlink()
    trace.note('lost')
    (told,) = trace.told
    assert 'the file was removed' in told
    trace.now_ns = RETRY_NS
    trace.note('kept')
    trace.writer.close()
    assert trace.names() == ['kept']
    assert trace.writer.losses == {'trace_failed': 1}


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    trace = Trace(tmp_path / 'trace')
    trace.note('lost')
    assert 'Permission denied' in trace.told[0]


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / 'trace').write_text('')
    trace = Trace(tmp_path / 'trace')
    trace.note('lost')
    trace.writer.close()
    assert len(trace.told) == 1
    assert trace.writer.losses == {'trace_failed': 1}


def test_a_disk_that_hangs_does_not_keep_a_process_from_ending(trace, monkeypatch):
    monkeypatch.setattr(module, 'CLOSE_S', 0.01)
    trace.note('one')
    with trace.writer._write_lock:
        trace.writer.close()
    assert 'blocked' in trace.told[0]
    trace.writer.write(records.IncidentRecord(1, name='late'))
    assert trace.writer.losses == {'trace_closed': 1}
    trace.writer.close()


def test_new_policies_are_known_although_the_disk_was_full(trace):
    trace.note('one')
    fill(trace.writer)
    present = [records.policy('a', 'pick@77')]
    trace.writer.write(records.PoliciesRecord(1, policies=present))
    trace.note('lost')
    trace.now_ns = RETRY_NS
    trace.note('two')
    trace.writer.close()
    assert trace.read('header')[-1]['policies'] == present


FIRST = 300
CHILD = f"""
from itertools import count
from pathlib import Path
import sys
import threading
from support.tools.trace_rig import header, IDS
from lerobot_serve.trace.format import records
from lerobot_serve.trace.writing.writer import TraceWriter

writer = TraceWriter(
    Path(sys.argv[1]),
    'edge',
    header(),
    limit_bytes=int(sys.argv[2]),
    keep_files=10**6,
    log_warning=print,
)
threading.Thread(target=writer.run, args=(threading.Event(),), daemon=True).start()
for seq in count():
    ids, reason = IDS._replace(seq=seq), 'x' * (seq % 500)
    writer.write(records.RequestRecord(seq, *ids.fields(), status='ok', reason=reason))
    if seq >= {FIRST}:
        writer.drain()
    if seq == {FIRST}:
        print('going on', flush=True)
"""


@pytest.mark.parametrize('limit_bytes', [1 << 30, 8192])
def test_a_killed_process_tears_at_most_the_last_line(tmp_path, limit_bytes):
    command = [sys.executable, '-c', CHILD, str(tmp_path), str(limit_bytes)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={'PYTHONPATH': f'{REPOSITORY / "test"}:{REPOSITORY}'},
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b'going on\n'
        child.kill()
    items = list(read_records(tmp_path / 'edge.jsonl'))
    kinds = [record['kind'] for _, record in items]
    damage = [record for _, record in items if record['kind'] == 'damaged']
    assert len(damage) <= 1
    if damage:
        assert kinds[-1] == 'damaged'
        assert damage[0]['reason'] == 'torn'
    seqs = [record['seq'] for _, record in items if record['kind'] == 'request']
    assert len(seqs) > FIRST
    assert seqs == list(range(len(seqs)))
    assert kinds[0] == 'header'
    assert kinds.count('footer') >= kinds.count('header') - 1
