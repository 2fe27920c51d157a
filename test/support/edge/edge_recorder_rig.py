# SPDX-License-Identifier: Apache-2.0
"""A recorder whose records a test reads, and the pipeline that tells it of requests."""

from __future__ import annotations

from pathlib import Path
import tempfile
from typing import Any

from lerobot_serve.edge.observability.trace_recorder import EdgeTraceRecorder
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.trace.format.records import fields_of, Record, TraceRecord
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.writing.writer import TraceWriter
from support.edge.request_pipeline_rig import begin_session, RTC
from support.edge.requester_rig import Bench
from support.tools.trace_rig import header

CLIENT = 'robot_1'


class Notes:
    """Stands for a writer: keeps the records in memory, and their fields as written."""

    def __init__(self) -> None:
        self.queued: list[TraceRecord] = []
        self.records: list[Record] = []

    def write(self, record: TraceRecord) -> None:
        self.queued.append(record)
        self.records.append(fields_of(record))

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record['kind'] == kind]


def recorder_of(bench_clock: Any, notes: Notes, **redaction: str) -> EdgeTraceRecorder:
    parameters = EdgeParameters(client_id=CLIENT)
    return EdgeTraceRecorder(
        notes, parameters, Redaction(**redaction), client_id=CLIENT, clock=bench_clock
    )


class Asking:
    """An pipeline with an open session, and what its recorder wrote."""

    def __init__(self, **redaction: str) -> None:
        self.notes = Notes()
        self.recorder = recorder_of(lambda: self.bench.now_ns, self.notes, **redaction)
        self.bench = Bench(
            listener=self.recorder, client_id=CLIENT, step_s=0.01, merge_mode='replace', rtc=True
        )
        begin_session(self.bench)

    @property
    def requests(self) -> list[Record]:
        return self.notes.of('request')

    def session(self, server: str = '/b') -> None:
        begin_session(self.bench, RTC, server)


def audited(records: list[Record], **parameters: Any) -> dict[str, CheckStatus]:
    """Return what the audit of an edge's records says of each check."""
    with tempfile.TemporaryDirectory() as folder:
        given = header(parameters={'interpolation_multiplier': 1, **parameters}, now_ns=0)
        writer = TraceWriter(
            Path(folder), 'edge', given, limit_bytes=1 << 24, keep_files=9, log_warning=print
        )
        for record in records:
            writer.write(dict(record))
        writer.close()
        return {result.check: result.outcome for result in run_audit([folder]).results}
