# SPDX-License-Identifier: Apache-2.0
"""What operators did, and which robots halted, in the trace of a router."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.router.monitoring.trace_recorder import halt_name, RouterTraceRecorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.trace.format.records import fields_of, TraceRecord


class Writer:
    def __init__(self) -> None:
        self.records: list[dict] = []

    def write(self, record: TraceRecord) -> None:
        self.records.append(fields_of(record))


def recorder() -> tuple[RouterTraceRecorder, list[dict]]:
    writer = Writer()
    return RouterTraceRecorder(writer, lambda: 7), writer.records


def session(name: str = 'left') -> SimpleNamespace:
    return SimpleNamespace(request=SimpleNamespace(client_id=name), slot='b', policy='v2@1')


def test_a_halt_and_its_end_are_states_of_the_robot():
    trace, records = recorder()
    for halt in (0, 1, 1, 0, 9):
        trace.on_requested(session(), b'', None, ExecutionReport(halt=halt))
    trace.on_requested(session(), b'', None, None)
    assert [(each['from'], each['to']) for each in records] == [
        ('runs', 'cage latched'),
        ('cage latched', 'runs'),
        ('runs', 'halted (9)'),
    ]
    assert records[0]['component'] == 'robot left'
    assert records[0]['reason'] == 'slot b, v2@1'
    assert halt_name(2) == 'stop called'


def test_a_changed_parameter_has_an_author():
    trace, records = recorder()
    old = RouterParameters(slot_prod=('/p',))
    trace.changed_parameters(old, replace(old, split_percent=7), 'kim@lab: why')
    (record,) = records
    assert (record['name'], record['new'], record['by']) == ('split_percent', 7, 'kim@lab: why')


def test_a_command_has_its_author_and_its_effect():
    trace, records = recorder()
    trace.command('drain', 'b', 'kim@lab: smoke', 'slot b receives no new episodes')
    assert records == [
        {
            'kind': 'command',
            'mono_ns': 7,
            'name': 'drain',
            'slot': 'b',
            'by': 'kim@lab: smoke',
            'reason': 'slot b receives no new episodes',
        }
    ]
