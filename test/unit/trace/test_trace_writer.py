# SPDX-License-Identifier: Apache-2.0
"""The writer while all is well: threads, order, rotation, names."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
import threading

import pytest
from support.tools.trace_rig import header, IDS, POLICIES, strict, Trace, WALL_S

from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format import encoding, records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import IncidentRecord
from lerobot_serve.trace.format.run_files import run_name
from lerobot_serve.trace.writing import writer as module
from lerobot_serve.trace.writing.open_trace import open_trace
from lerobot_serve.trace.writing.record_queue import (
    QUEUED_IMAGE_BYTES_LIMIT,
    RecordQueue,
    RECORDS_LIMIT,
)
from lerobot_serve.trace.writing.writer import TraceWriter

MINUTE_NS = 60_000_000_000


@pytest.fixture
def trace(tmp_path):
    return Trace(tmp_path / 'trace')


def test_a_run_begins_with_its_header_and_ends_with_its_footer(trace):
    trace.note('one')
    trace.now_ns = 9
    trace.writer.close()
    lines = [strict(line) for line in trace.writer.path.read_bytes().splitlines()]
    assert lines == [
        strict(encode(header())) | {'part': 0},
        {'kind': 'incident', 'mono_ns': 0, 'name': 'one'},
        {'kind': 'footer', 'mono_ns': 9, 'records': 1, 'records_lost': {}, 'end_reason': 'closed'},
    ]
    assert trace.writer.path.name == 'edge.jsonl'
    assert not trace.told


def test_a_thread_writes_until_it_is_stopped(trace):
    stop = threading.Event()
    thread = threading.Thread(target=trace.writer.run, args=(stop,))
    thread.start()
    trace.writer.write(records.IncidentRecord(1, name='one'))
    stop.set()
    trace.writer.wake()
    thread.join()
    trace.writer.write(records.IncidentRecord(2, name='after the thread'))
    trace.writer.close()
    assert trace.names() == ['one', 'after the thread']


def test_what_waits_is_on_disk_within_a_tenth_of_a_second():
    assert module.FLUSH_S <= 0.1


def test_the_thread_writes_without_being_woken(trace, monkeypatch):
    written, drain = threading.Event(), trace.writer.drain

    def drain_and_say():
        drain()
        if trace.writer.written:
            written.set()

    monkeypatch.setattr(trace.writer, 'drain', drain_and_say)
    stop = threading.Event()
    thread = threading.Thread(target=trace.writer.run, args=(stop,))
    thread.start()
    trace.writer.write(records.IncidentRecord(1, name='one'))
    assert written.wait(60)
    assert trace.names() == ['one']
    stop.set()
    trace.writer.wake()
    thread.join()
    trace.writer.close()


def test_threads_lose_nothing_and_keep_their_order(trace):
    count, stop = RECORDS_LIMIT // 4, threading.Event()
    together = threading.Barrier(4)

    def write(client):
        together.wait()
        for seq in range(count):
            trace.writer.write(
                records.RequestRecord(
                    seq, *IDS._replace(client_id=client, seq=seq).fields(), status='ok'
                )
            )

    threads = [threading.Thread(target=write, args=(f'robot_{n}',)) for n in range(4)]
    runner = threading.Thread(target=trace.writer.run, args=(stop,))
    for thread in (runner, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    trace.writer.wake()
    runner.join()
    trace.writer.close()
    orders = defaultdict(list)
    for record in trace.read('request'):
        orders[record['client_id']].append(record['seq'])
    assert orders == {f'robot_{n}': list(range(count)) for n in range(4)}
    assert sum(footer['records'] for footer in trace.read('footer')) == 4 * count


def test_only_one_thread_at_a_time_writes(trace, monkeypatch):
    held, write = [], trace.writer._output.write

    def look_and_write(line):
        held.append(trace.writer._write_lock.locked())
        write(line)

    monkeypatch.setattr(trace.writer._output, 'write', look_and_write)
    trace.note('one')
    trace.writer.write(records.IncidentRecord(1, name='two'))
    trace.writer.close()
    assert held == [True] * 3


def test_what_is_too_much_at_once_is_counted_by_kind(trace):
    for _ in range(RECORDS_LIMIT):
        trace.writer.write(records.IncidentRecord(1, name='fits'))
    for _ in range(3):
        trace.writer.write(records.IncidentRecord(1, name='lost'))
    trace.writer.write(records.RequestRecord(1, *IDS.fields(), status='ok'))
    trace.writer.drain()
    trace.now_ns = 5
    trace.note('later')
    trace.writer.close()
    assert trace.names() == ['fits'] * RECORDS_LIMIT + ['later']
    lost = {'kind': 'drop', 'mono_ns': 0, 'reason': 'trace_overflow'}
    assert trace.read('drop') == [
        lost | {'count': 3, 'item': 'incident'},
        lost | {'count': 1, 'item': 'request'},
    ]
    assert trace.writer.losses == {'trace_overflow': 4}
    assert trace.read('footer')[0]['records_lost'] == {'trace_overflow': 4}


def test_pictures_are_bounded_in_bytes():
    half = records.RequestRecord(images=[{'base64': 'x' * (QUEUED_IMAGE_BYTES_LIMIT // 2)}])
    waiting = RecordQueue()
    assert [waiting.put(half) for _ in range(3)] == [True, True, False]
    assert waiting.put(records.IncidentRecord(name='x'))
    assert waiting.take() is half
    assert waiting.put(half)


@pytest.mark.parametrize(
    'record',
    [None, 5, {}, records.RequestRecord(replay=object()), records.RequestRecord(images=5)],
)
def test_whatever_is_written_the_caller_goes_on(trace, record):
    trace.writer.write(record)
    trace.note('next')
    trace.writer.close()
    (drop,) = trace.read('drop')
    assert (drop['reason'], drop['count']) == ('trace_unwritable', 1)
    assert drop['item'] == ('request' if isinstance(record, records.RequestRecord) else 'unknown')
    assert trace.names() == ['next']


def test_what_comes_after_the_end_is_counted(trace):
    trace.writer.close()
    before = trace.writer.path.read_bytes()
    trace.note('late')
    trace.writer.close()
    assert trace.writer.path.read_bytes() == before
    assert trace.writer.losses == {'trace_closed': 1}


def test_parts_are_bounded_and_the_oldest_go(tmp_path):
    trace = Trace(tmp_path, limit_bytes=4096, keep_files=3)
    names = [f'{number:04}' for number in range(300)]
    for at in range(0, 300, 7):
        trace.note(*names[at : at + 7])
    trace.writer.close()
    files = trace.files()
    assert len(files) == 3
    assert all(file.stat().st_size <= 4096 for file in files)
    written = trace.names()
    assert written == names[-len(written) :]
    headers, footers = trace.read('header'), trace.read('footer')
    first = headers[0]['part']
    assert first > 1
    assert [head['part'] for head in headers] == [first, first + 1, first + 2]
    assert [head['continues'] for head in headers[1:]] == [
        f'edge.{first}.jsonl',
        f'edge.{first + 1}.jsonl',
    ]
    assert all(head['policies'] == POLICIES for head in headers)
    assert [foot['end_reason'] for foot in footers] == ['rotated', 'rotated', 'closed']
    assert sum(foot['records'] for foot in footers) == len(written)


def times_of(trace: Trace) -> dict[str, float]:
    """Return the time of day of each incident, as readers see it."""
    entries = TraceRun(trace.writer.path, 0).read()
    return {
        entry.record.name: entry.time_s
        for entry in entries
        if isinstance(entry.record, IncidentRecord)
    }


def test_a_clock_that_is_set_later_dates_the_records_from_then_on(trace):
    trace.began_s, jump_s = WALL_S, 50 * 365 * 86_400
    trace.note('before')
    trace.now_ns += MINUTE_NS
    trace.began_s += jump_s
    trace.note('not seen yet')
    trace.now_ns += 1_000_000_000
    trace.note('after')
    trace.now_ns += MINUTE_NS
    trace.note('later')
    (clock,) = trace.read('clock')
    assert clock['mono_ns'] == MINUTE_NS
    times = times_of(trace)
    assert times['before'] == pytest.approx(WALL_S, abs=0.01)
    assert times['after'] == pytest.approx(WALL_S + jump_s + 61, abs=0.01)
    assert times['later'] == pytest.approx(WALL_S + jump_s + 121, abs=0.01)


@dataclass(frozen=True)
class Parameters:
    """Those of a node."""

    trace_folder: str
    trace_file_limit_mb: int = 1
    trace_max_files: int = 2


def test_the_trace_of_a_node_follows_the_time_of_day_that_it_is_given(tmp_path):
    now_ns, wall_s = [0], [WALL_S]
    writer = open_trace(
        Parameters(str(tmp_path)),
        node='/edge',
        role='edge',
        clock=lambda: now_ns[0],
        log_warning=print,
        wall=lambda: wall_s[0],
    )
    writer.drain()
    now_ns[0], wall_s[0] = MINUTE_NS, WALL_S + 1000
    writer.drain()
    (clock,) = (record for _, record in read_records(writer.path) if record['kind'] == 'clock')
    assert clock['wall_time'] == records.wall_text(WALL_S + 1000)
    writer.close()


def test_a_clock_that_is_set_by_less_than_a_second_is_no_record(trace):
    for _ in range(5):
        trace.now_ns += MINUTE_NS
        trace.began_s += 0.4
        trace.note('one')
    # the sum of small steps is seen, too
    assert len(trace.read('clock')) == 1


def test_the_time_of_day_is_compared_once_a_minute(trace):
    trace.note('one')
    trace.began_s += 100
    trace.now_ns += MINUTE_NS - 1
    trace.note('two')
    assert not trace.read('clock')


def test_each_part_has_the_time_of_day_of_its_begin(tmp_path):
    trace = Trace(tmp_path, limit_bytes=4096, keep_files=9)
    trace.note('x' * 3500)
    trace.began_s += 100
    trace.now_ns += 5_000_000_000
    trace.note('y' * 3500)
    first, second = trace.read('header')
    assert (first['mono_ns'], second['mono_ns']) == (5_000, trace.now_ns)
    assert times_of(trace)['y' * 3500] == pytest.approx(WALL_S + 105, abs=0.01)


def test_headers_of_an_old_run_repeat_the_first_moment(tmp_path):
    trace = Trace(tmp_path, limit_bytes=4096, keep_files=9)
    trace.now_ns = 7_000_000_000
    trace.note('x' * 3500, 'y' * 3500)
    for path in trace.files():
        first, *rest = path.read_bytes().splitlines(keepends=True)
        old = strict(first) | {name: getattr(header(), name) for name in ('mono_ns', 'wall_time')}
        path.write_bytes(encode(old) + b''.join(rest))
    assert list(times_of(trace).values()) == pytest.approx([WALL_S + 7] * 2, abs=0.01)


def test_the_first_line_that_is_too_long_for_its_images_is_logged(trace, monkeypatch):
    monkeypatch.setattr(encoding, 'LINE_LIMIT', 1000)
    for seq in range(3):
        images = [{'name': 'front', 'base64': 'x' * 2000}]
        ids = IDS._replace(seq=seq)
        trace.writer.write(records.RequestRecord(seq, *ids.fields(), status='ok', images=images))
    trace.note('next')
    assert [each['seq'] for each in trace.read('request')] == [0, 1, 2]
    assert not trace.writer.losses
    (told,) = trace.told
    assert 'without images' in told


def test_a_line_that_is_larger_than_a_part_has_one_of_its_own(tmp_path):
    trace = Trace(tmp_path, limit_bytes=4096, keep_files=9)
    trace.note('x' * 5000, 'y' * 5000, 'two')
    trace.writer.close()
    assert [len(name) for name in trace.names()] == [5000, 5000, 3]
    assert [foot['records'] for foot in trace.read('footer')] == [1, 1, 1]


def test_new_policies_stand_in_the_next_headers(tmp_path):
    trace = Trace(tmp_path, limit_bytes=4096, keep_files=9)
    present = [records.policy('a', 'pick@77')]
    trace.writer.write(records.PoliciesRecord(1, policies=present))
    trace.note('x' * 3000, 'y' * 3000)
    trace.writer.close()
    first, second = trace.read('header')
    assert (first['policies'], second['policies']) == (POLICIES, present)


def test_no_run_writes_into_anothers_files(tmp_path):
    runs = [Trace(tmp_path, limit_bytes=4096, keep_files=1) for _ in range(3)]
    for number, trace in enumerate(runs):
        trace.note(f'run {number}', 'x' * 3000, 'y' * 3000, 'end')
        trace.writer.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ['edge-2.1.jsonl', 'edge-3.1.jsonl', 'edge.1.jsonl']


def test_a_file_that_is_in_the_way_is_left_alone(tmp_path):
    trace = Trace(tmp_path, limit_bytes=4096, keep_files=9)
    trace.note('one')
    (tmp_path / 'edge.1.jsonl').symlink_to('/etc/hostname')
    trace.note('x' * 4000, 'two')
    trace.writer.close()
    assert trace.writer.path.name == 'edge.3.jsonl'
    assert trace.read('header')[-1]['continues'] == 'edge.2.jsonl'


@pytest.mark.parametrize(
    'name', ['../../outside', '/etc/passwd', 'a/b', '', '.', '..', 'x.1', 'a\0b', 'x' * 500]
)
def test_no_name_leaves_the_folder(tmp_path, name):
    trace = Trace(tmp_path / 'trace', name)
    trace.note('one')
    trace.writer.close()
    assert trace.names() == ['one']
    assert [path.name for path in tmp_path.iterdir()] == ['trace']
    (file,) = trace.files()
    assert file.parent == tmp_path / 'trace'
    assert file.name.count('.') == 1


def test_a_run_is_named_after_its_node_and_its_time():
    assert run_name('/edge_controller', 1_750_000_000.9) == 'edge_controller-20250615T150640Z'


@pytest.mark.parametrize(
    ('limits', 'text'),
    [
        ({'limit_bytes': 100}, 'limit_bytes must be at least 4096, got 100'),
        ({'keep_files': 0}, 'keep_files must be at least 1, got 0'),
    ],
)
def test_bounds_that_make_no_sense_are_refused(tmp_path, limits, text):
    with pytest.raises(ValueError, match=text):
        Trace(tmp_path, **limits)


def test_a_header_that_is_no_json_is_refused(tmp_path):
    with pytest.raises(ValueError, match='header'):
        TraceWriter(
            tmp_path,
            'edge',
            header(parameters={'any': object()}),
            limit_bytes=4096,
            keep_files=1,
            log_warning=print,
        )
    assert not list(tmp_path.iterdir())
