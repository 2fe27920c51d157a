# SPDX-License-Identifier: Apache-2.0
"""Fields of a record that the thread that writes works out."""

from __future__ import annotations

import threading

import pytest
from support.tools.trace_rig import Trace

from lerobot_serve.trace.format.records import DeferredFields, RequestRecord
from lerobot_serve.trace.writing.record_queue import QUEUED_IMAGE_BYTES_LIMIT


@pytest.fixture
def trace(tmp_path) -> Trace:
    return Trace(tmp_path)


def later(fields, size: int = 0) -> RequestRecord:
    return RequestRecord(1, later=DeferredFields(fields, size))


def test_they_are_worked_out_by_who_writes(trace):
    threads = []

    def fields() -> dict:
        threads.append(threading.get_ident())
        return {'seq': 3, 'reason': '', 'seed': None, 'superseded': 0}

    trace.writer.write(later(fields))
    assert threads == []
    writing = threading.Thread(target=trace.writer.drain)
    writing.start()
    ident = writing.ident
    writing.join(10)
    assert threads == [ident]
    # what is not known, or an empty text, is left out
    assert trace.read('request') == [{'kind': 'request', 'mono_ns': 1, 'seq': 3, 'superseded': 0}]


def test_a_record_whose_fields_cannot_be_had_is_counted(trace):
    trace.writer.write(later(lambda: 1 // 0))
    trace.writer.write(later(lambda: {'seq': object()}))
    trace.note('next')
    assert trace.writer.losses == {'trace_unwritable': 2}
    assert trace.names() == ['next']


def test_what_waits_with_them_is_bounded_and_freed(trace):
    half = QUEUED_IMAGE_BYTES_LIMIT // 2
    for seq in range(3):
        trace.writer.write(later(lambda seq=seq: {'seq': seq}, half))
    assert trace.writer.losses == {'trace_overflow': 1}
    trace.writer.drain()
    trace.writer.write(later(lambda: {'seq': 3}, half))
    trace.writer.drain()
    assert [record['seq'] for record in trace.read('request')] == [0, 1, 3]
