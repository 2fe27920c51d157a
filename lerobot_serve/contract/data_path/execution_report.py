# SPDX-License-Identifier: Apache-2.0
"""
Report executed actions with each request of a robot: the extension 'lerobot_serve.executed'.

A router reads from it the health of the robot and the executed rows of each chunk; a policy server
ignores it. The bytes: one for the version, one for the halt, two unused, then the fields of HEAD,
a RUN for each run, and the rows of all runs in sequence as float32. Trailing bytes are ignored. A
report is lost with its request. A robot that halts sends one request more, for its report.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf
import struct

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.cdr import FLOAT32
from lerobot_serve.contract.data_path.message_parts import EXTENSION_BYTES_LIMIT
from lerobot_serve.contract.data_path.observation import read_extension
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.records import Extension

KEY = 'lerobot_serve.executed'
VERSION = 1
# four seconds of a fast robot; requests come more often
ROWS_LIMIT = 256
# for any robot, the rows of a request leave room for one run per row
VALUES_LIMIT = EXTENSION_BYTES_LIMIT // 8

# version, halt, oldest age, actions, fallbacks, trips, stalls, dropped rows, columns, runs
HEAD = struct.Struct('<BB2xfQQQQQII')
# seq, session epoch, first row, rows, flags; a bit without a name is ignored
RUN = struct.Struct('<QIIHH')
AFTER_PAUSE = 1


class Halt(IntEnum):
    """Why a robot is at rest until a person acts; another value means some other reason."""

    NONE = 0
    # the safety cage latched
    LATCHED = 1
    # the stop service was called
    STOPPED = 2


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedRun:
    """
    Consecutive rows of one chunk as commanded: float32, rows x actions. `after_pause`: other
    commands, or none, came between the previous run and this one.
    """

    seq: int
    session_epoch: int
    first_row: int
    rows: Float32Array
    after_pause: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionReport:
    """
    Counts since the start of the edge process: `actions` are the commands sent, `fallbacks` those
    of a rung of the ladder because the queue was empty, `trips` the commands with a cage result
    other than PASS, `dropped_rows` the rows that exceeded the report.

    Since the last request: the age of the oldest executed action, and the `runs`, oldest first.
    Now: `halt`, a value of Halt or one that is not known here.
    """

    actions: int = 0
    fallbacks: int = 0
    trips: int = 0
    stalls: int = 0
    dropped_rows: int = 0
    oldest_age_s: float = 0.0
    runs: tuple[ExecutedRun, ...] = ()
    halt: int = Halt.NONE


def rows_limit(columns: int) -> int:
    """Return the maximum number of rows in one report, for rows of `columns` actions."""
    return min(ROWS_LIMIT, VALUES_LIMIT // max(1, columns))


def encode(executed: ExecutionReport) -> Extension:
    """Return the extension. Raises Unencodable."""
    runs = executed.runs
    columns = runs[0].rows.shape[1] if runs else 0
    for run in runs:
        if run.rows.ndim != 2 or run.rows.shape[1] != columns or not run.rows.size:
            raise Unencodable(f'a run must be rows of {columns} actions, got {run.rows.shape}')
    rows = sum(len(run.rows) for run in runs)
    if rows > rows_limit(columns):
        raise Unencodable(
            f'{rows} rows were executed, at most {rows_limit(columns)} are allowed in a report'
        )
    try:
        head = HEAD.pack(
            VERSION,
            executed.halt,
            executed.oldest_age_s,
            executed.actions,
            executed.fallbacks,
            executed.trips,
            executed.stalls,
            executed.dropped_rows,
            columns,
            len(runs),
        )
        heads = [
            RUN.pack(
                run.seq,
                run.session_epoch,
                run.first_row,
                len(run.rows),
                AFTER_PAUSE if run.after_pause else 0,
            )
            for run in runs
        ]
    except (struct.error, OverflowError) as error:
        raise Unencodable(f'the execution report does not fit its fields: {error}') from None
    values = [np.ascontiguousarray(run.rows, FLOAT32).tobytes() for run in runs]
    return Extension(KEY, b''.join((head, *heads, *values)))


def decode(extension: Extension) -> ExecutionReport:
    """Return the report, as a copy of the message data. Raises Malformed."""
    return _read(bytes(extension.value))


def find_execution_report(raw: bytes) -> ExecutionReport | None:
    """
    Return the report in the bytes of an Observation without decoding the rest; None without a
    report or with a newer version. Raises Malformed.
    """
    value = read_extension(raw, KEY)
    if value is None or (len(value) and value[0] > VERSION):
        return None
    return _read(bytes(value))


def _read(data: bytes) -> ExecutionReport:
    if data[:1] != bytes((VERSION,)):
        raise Malformed(
            'executed_version', f'{KEY}: must begin with {VERSION}, got {data[:1].hex()!r}'
        )
    _need(data, HEAD.size)
    _, halt, age_s, *counts, columns, run_count = HEAD.unpack_from(data)
    # also for NaN
    if not 0 <= age_s < inf:
        raise Malformed('not_finite', f'{KEY}: oldest_age_s must be 0 or above, got {age_s}')
    if run_count > ROWS_LIMIT or columns > VALUES_LIMIT:
        raise Malformed(
            'oversized',
            f'{KEY}: {run_count} runs of {columns} actions, at most {ROWS_LIMIT} runs and '
            f'{VALUES_LIMIT} actions are allowed',
        )
    actions, fallbacks, trips, stalls, dropped_rows = counts
    return ExecutionReport(
        actions=actions,
        fallbacks=fallbacks,
        trips=trips,
        stalls=stalls,
        dropped_rows=dropped_rows,
        oldest_age_s=age_s,
        runs=_runs(data, run_count, columns) if run_count else (),
        halt=halt,
    )


def _runs(data: bytes, run_count: int, columns: int) -> tuple[ExecutedRun, ...]:
    begin = HEAD.size + run_count * RUN.size
    _need(data, begin)
    heads = tuple(RUN.iter_unpack(data[HEAD.size : begin]))
    rows = sum(head[3] for head in heads)
    if rows > rows_limit(columns):
        raise Malformed(
            'oversized', f'{KEY}: {rows} rows, at most {rows_limit(columns)} are allowed'
        )
    if not (columns and all(head[3] for head in heads)):
        raise Malformed('wrong_shape', f'{KEY}: a run without rows or actions')
    _need(data, begin + 4 * rows * columns)
    table = np.frombuffer(data, FLOAT32, rows * columns, begin).reshape(rows, columns)
    runs, at = [], 0
    for seq, session_epoch, first_row, count, flags in heads:
        rows_of_run = table[at : at + count]
        runs.append(
            ExecutedRun(seq, session_epoch, first_row, rows_of_run, bool(flags & AFTER_PAUSE))
        )
        at += count
    return tuple(runs)


def _need(data: bytes, size: int) -> None:
    if len(data) < size:
        raise Malformed('truncated', f'{KEY}: {size} bytes are needed, got {len(data)}')
