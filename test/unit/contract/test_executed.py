# SPDX-License-Identifier: Apache-2.0
"""What a robot tells of what it executed: whole, bounded, found without opening the request."""

from __future__ import annotations

from math import nan
import struct
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.contract.wire_examples import an_observation, content, observations, patient, uint
from support.replacing import replace

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.execution_report import (
    decode,
    encode,
    ExecutedRun,
    ExecutionReport,
    find_execution_report,
    Halt,
    HEAD,
    KEY,
    ROWS_LIMIT,
    rows_limit,
    VALUES_LIMIT,
    VERSION,
)
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.records import Extension

values = st.floats(width=32)


@st.composite
def reports(draw: st.DrawFn) -> ExecutionReport:
    """Return any report that may be sent, with every number that a row may hold."""
    columns = draw(st.integers(1, 5))

    def rows() -> np.ndarray:
        count = draw(st.integers(1, 4))
        drawn = draw(st.lists(values, min_size=count * columns, max_size=count * columns))
        return np.array(drawn, np.float32).reshape(count, columns)

    runs = [
        ExecutedRun(draw(uint(64)), draw(uint(32)), draw(uint(32)), rows(), draw(st.booleans()))
        for _ in range(draw(st.integers(0, 4)))
    ]
    age_s = draw(st.floats(0, 1e6, width=32))
    counts = [draw(uint(64)) for _ in range(5)]
    return ExecutionReport(*counts, age_s, tuple(runs), draw(uint(8)))


def a_report(rows: int = 3, columns: int = 2) -> ExecutionReport:
    run = ExecutedRun(7, 9, 4, np.arange(rows * columns, dtype=np.float32).reshape(rows, columns))
    return ExecutionReport(50, 4, 3, 2, 1, 0.25, (run, replace(run, seq=8, after_pause=True)))


def told(executed: ExecutionReport, **fields: object) -> bytes:
    """Return the bytes of a request that tells it."""
    return wire_observation.encode(
        replace(an_observation(), extensions=(encode(executed),), **fields)
    )


def reason(call, given: object) -> str:
    with pytest.raises(Malformed) as caught:
        call(given)
    return caught.value.reason


def read(data: bytes) -> ExecutionReport | None:
    """Decode; None for Malformed. What was decoded can be sent on."""
    try:
        executed = decode(Extension(KEY, data))
    except Malformed as error:
        assert error.reason.isidentifier()
        return None
    assert content(decode(encode(executed))) == content(executed)
    return executed


@given(reports())
@patient
def test_what_is_told_arrives(executed):
    assert content(decode(encode(executed))) == content(executed)


@given(observations, reports(), st.booleans())
@patient
def test_it_is_found_in_any_request(observation, executed, is_told):
    told = (encode(executed),) if is_told else ()
    before, behind = observation.extensions, (Extension('vendor.more', b'12'),)
    raw = wire_observation.encode(replace(observation, extensions=(*before, *told, *behind)))
    found = find_execution_report(raw)
    assert (found is not None) == is_told
    assert found is None or content(found) == content(executed)


def test_the_halt_is_the_second_byte_which_older_robots_leave_at_zero():
    data = bytes(encode(replace(a_report(), halt=Halt.STOPPED)).value)
    assert data[:4] == bytes((VERSION, 2, 0, 0))
    assert decode(Extension(KEY, bytes((VERSION, 0)) + data[2:])).halt == Halt.NONE
    assert decode(Extension(KEY, bytes((VERSION, 77)) + data[2:])).halt == 77


def test_nothing_told_is_nothing_found():
    assert find_execution_report(wire_observation.encode(an_observation())) is None


def test_what_a_later_version_tells_is_nothing_found():
    later = Extension(KEY, bytes((VERSION + 1,)) + b'in another way')
    raw = wire_observation.encode(replace(an_observation(), extensions=(later,)))
    assert find_execution_report(raw) is None
    assert reason(decode, later) == 'executed_version'


def test_bytes_behind_the_rows_are_ignored():
    executed = a_report()
    longer = bytes(encode(executed).value) + b'of a later version'
    assert content(decode(Extension(KEY, longer))) == content(executed)


def test_what_was_found_does_not_keep_the_request_in_memory():
    picture = Image('front', 1000, 1000, np.zeros(3_000_000, np.uint8))
    tracemalloc.start()
    try:
        raw = told(a_report(), images=(picture,))
        found = find_execution_report(raw)
        del raw
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert len(found.runs) == 2


def test_images_are_not_looked_at():
    """Their bytes may be anything, as long as their number is right."""
    raw = told(a_report())
    at = raw.index(b'\xff\xd8')
    harmed = raw[:at] + b'\x00\x00' + raw[at + 2 :]
    assert content(find_execution_report(harmed)) == content(find_execution_report(raw))


# bytes that are not a report


def test_a_request_cut_off_at_any_byte_is_refused():
    raw = told(a_report())
    for size in range(len(raw)):
        assert reason(find_execution_report, raw[:size]) in ('truncated', 'encapsulation')


def test_a_chunk_is_no_request():
    raw = told(a_report())
    assert reason(find_execution_report, raw[:30] + b'\x02' + raw[31:]) == 'wrong_type'


def test_a_report_cut_off_at_any_byte_is_refused():
    data = encode(a_report()).value
    for size in range(1, len(data)):
        assert reason(decode, Extension(KEY, data[:size])) == 'truncated', size
    assert reason(decode, Extension(KEY, b'')) == 'executed_version'
    raw = wire_observation.encode(
        replace(an_observation(), extensions=(Extension(KEY, data[:-1]),))
    )
    assert reason(find_execution_report, raw) == 'truncated'


def head(age_s: float = 0.0, columns: int = 1, runs: int = 0) -> bytes:
    return HEAD.pack(VERSION, 0, age_s, 0, 0, 0, 0, 0, columns, runs)


HOSTILE = {
    'an age of NaN': (head(nan), 'not_finite'),
    'an endless age': (head(float('inf')), 'not_finite'),
    'an age before birth': (head(-1.0), 'not_finite'),
    'runs without end': (head(runs=2**32 - 1), 'oversized'),
    'actions without end': (head(columns=2**32 - 1, runs=1), 'oversized'),
    'rows without end': (head(runs=1) + struct.pack('<QIIHH', 0, 0, 0, 65535, 0), 'oversized'),
    'no rows': (head(runs=1) + struct.pack('<QIIHH', 0, 0, 0, 0, 0), 'wrong_shape'),
    'no actions': (head(columns=0, runs=1) + struct.pack('<QIIHH', 0, 0, 0, 1, 0), 'wrong_shape'),
    'no values': (head(runs=1) + struct.pack('<QIIHH', 0, 0, 0, 1, 0), 'truncated'),
    'another version': (b'\x00' + head()[1:], 'executed_version'),
}


@pytest.mark.parametrize(('data', 'word'), HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_is_refused(data, word):
    assert reason(decode, Extension(KEY, data)) == word


flips = st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), min_size=1, max_size=6)


@given(flips)
@settings(max_examples=300)
def test_no_combination_of_bytes_does_harm(changes):
    data = bytearray(encode(a_report()).value)
    for at, new in changes:
        data[at % len(data)] = new
    read(bytes(data))


@given(st.binary(max_size=120), st.booleans())
@settings(max_examples=200)
def test_noise_does_no_harm(noise, with_head):
    read(head(0.5, 2, 2) + noise if with_head else noise)


def test_no_number_asks_for_memory():
    data = encode(a_report()).value
    tracemalloc.start()
    try:
        for at in range(0, len(data) - 3, 2):
            for number in (2**32 - 1, 2**31, 2**20, 65535, ROWS_LIMIT, ROWS_LIMIT + 1):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                read(data[:at] + struct.pack('<I', number) + data[at + 4 :])
                assert tracemalloc.get_traced_memory()[1] - before < 100_000, (at, number)
    finally:
        tracemalloc.stop()


# what is too much to be told


@pytest.mark.parametrize(
    ('columns', 'rows'), [(1, ROWS_LIMIT), (7, ROWS_LIMIT), (VALUES_LIMIT // 100, 100)]
)
def test_as_many_rows_are_told_as_are_allowed(columns, rows):
    assert rows_limit(columns) == rows
    run = ExecutedRun(1, 1, 0, np.zeros((1, columns), np.float32))
    assert len(decode(encode(ExecutionReport(runs=(run,) * rows))).runs) == rows
    with pytest.raises(Unencodable, match=f'{rows + 1} rows .* at most {rows}'):
        encode(ExecutionReport(runs=(run,) * (rows + 1)))


UNENCODABLE = [
    (ExecutedRun(1, 1, 0, np.zeros((0, 2), np.float32)),),
    (ExecutedRun(1, 1, 0, np.zeros((2, 0), np.float32)),),
    (ExecutedRun(1, 1, 0, np.zeros((1, 2))), ExecutedRun(1, 1, 0, np.zeros((1, 3)))),
    (ExecutedRun(-1, 1, 0, np.zeros((1, 2))),),
    (ExecutedRun(1, 2**32, 0, np.zeros((1, 2))),),
]


@pytest.mark.parametrize('runs', UNENCODABLE)
def test_what_fits_no_field_is_not_sent(runs):
    with pytest.raises(Unencodable):
        encode(ExecutionReport(runs=runs))


def test_counts_that_fit_no_field_are_not_sent():
    with pytest.raises(Unencodable):
        encode(ExecutionReport(actions=-1))
