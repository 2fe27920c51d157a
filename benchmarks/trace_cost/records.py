# SPDX-License-Identifier: Apache-2.0
"""
What a trace costs: the thread that has something to tell, and the one that writes it down.

Depositing is measured beside a writer thread that writes, as in a node; encoding and writing in
one thread, which shares its interpreter with the node. Both kinds take turns, so that they meet
the same machine. What the control tick of an edge pays is measured with its own recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
import tempfile
import threading
import time

import numpy as np

from benchmarks.control_loop.ticks import JOINTS, robot
from benchmarks.harness.processes import took_ms
from benchmarks.results.percentiles import microseconds
from benchmarks.results.report import Case
from lerobot_serve.edge import wiring
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.state_reader import RobotState
from lerobot_serve.edge.observability.trace_recorder import StepRecorder
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.telemetry.durations import summarize
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds, TraceRecord
from lerobot_serve.trace.writing.writer import TraceWriter

ABOUT = 'one record deposited by a busy thread, and written by the thread of the trace'
STEP_NS = 20_000_000
RECORDS_A_ROUND, WARM_UP_ROUNDS = 50, 5
LIMIT_BYTES, KEEP_FILES = 16 << 20, 2
GOAL_MS = {'made': 0.03, 'deposited': 0.005}
STEP_GOAL_MS = 0.01
PARAMETERS = {'joints': JOINTS, 'records_a_round': RECORDS_A_ROUND}
POLICY = 'reach@0123456789abcdef'
ACTIONS = np.random.default_rng(0).normal(size=JOINTS)


def executed(
    number: int,
    ids: RecordIds | None = None,
    *,
    now_ns: int = 0,
    slot: str = 'a',
    policy: str = POLICY,
    row: int = 3,
    action: np.ndarray = ACTIONS,
) -> TraceRecord:
    """Return the record of a control step."""
    ids = ids or RecordIds('robot_1', 77, number, 'episode-1')
    return records.ExecutedRecord(
        now_ns or number,
        *ids.command_fields(),
        control_step=number,
        cage_result='pass',
        rung='policy',
        raw_actions=records.copied(action.astype(np.float32)),
        commanded=records.copied(np.asarray(action, float)),
        chunk_row=row,
        age_s=0.1 + row / 30,
        slot=slot,
        policy=policy,
    )


def request(
    number: int,
    ids: RecordIds | None = None,
    *,
    now_ns: int = 0,
    slot: str = 'a',
    policy: str = POLICY,
    inference_ms: float = 25.5,
) -> TraceRecord:
    """Return the record of a request."""
    ids = ids or RecordIds('robot_1', 77, number, 'episode-1')
    return records.RequestRecord(
        now_ns or number,
        *ids.fields(),
        status='ok',
        episode=1,
        routing=records.routing(slot, routing_key=ids.episode_id, sticky=True),
        policy=policy,
        seed=number,
        queue_wait_ms=0.25,
        processing_ms=1.5,
        inference_ms=inference_ms,
        round_trip_ms=inference_ms + 3.0,
        request_bytes=40_000,
        chunk_bytes=5_000,
        superseded=0,
    )


KINDS: dict[str, Callable[[int], TraceRecord]] = {'executed': executed, 'request': request}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case each for depositing, the control tick and writing. Main thread."""
    cases = (measure_deposits, measure_steps, measure_writing)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return [case(rounds, Path(scratch)) for case in cases]


def measure_deposits(rounds: int, folder: Path) -> Case:
    """Make and deposit records beside the thread that writes them."""
    series_ms: dict[str, list[float]] = {}
    with running(folder) as writer:
        for done in range(WARM_UP_ROUNDS + rounds):
            for kind, make in KINDS.items():
                made_ms, deposited_ms = deposit_all(writer, make)
                if done >= WARM_UP_ROUNDS:
                    series_ms.setdefault(f'{kind}, made', []).extend(made_ms)
                    series_ms.setdefault(f'{kind}, deposited', []).extend(deposited_ms)
            # the next round finds the line as empty as a robot does
            writer.drain()
    goals = {}
    for step, goal_ms in GOAL_MS.items():
        slowest_ms = max(
            summarize(values)['p50'] for name, values in series_ms.items() if name.endswith(step)
        )
        goals[f'median of every record {step} under {goal_ms * 1000:g} us'] = slowest_ms < goal_ms
    return Case(
        'deposited',
        parameters=microseconds(series_ms),
        counts={'written': writer.written, 'lost': sum(writer.losses.values())},
        series_ms=series_ms,
        goals=goals,
    )


def deposit_all(
    writer: TraceWriter, make: Callable[[int], TraceRecord]
) -> tuple[list[float], list[float]]:
    """Return what making a record costs, and what depositing it costs."""
    made_ms, deposited_ms = [], []
    for number in range(RECORDS_A_ROUND):
        begin_ns = time.perf_counter_ns()
        record = make(number)
        made_ns = time.perf_counter_ns()
        writer.write(record)
        deposited_ms.append((time.perf_counter_ns() - made_ns) / 1e6)
        made_ms.append((made_ns - begin_ns) / 1e6)
    return made_ms, deposited_ms


def measure_steps(rounds: int, folder: Path) -> Case:
    """Let the recorder of an edge be told of control steps that play rows."""
    queue, sensed = ActionQueue(), RobotState(None, np.zeros(JOINTS))
    controller = wiring.make_controller(
        EdgeParameters(), robot(50), RobotDecisions(), queue, lambda: None
    )
    now_ns = time.monotonic_ns()
    chunk, told_ms = np.zeros((RECORDS_A_ROUND, JOINTS), np.float32), []
    with running(folder) as writer:
        recorder = StepRecorder(writer, time.monotonic_ns, client_id='robot_1')
        for done in range(WARM_UP_ROUNDS + rounds):
            source = ChunkSource(done, 77, 1, 'episode-1', now_ns, 'a', POLICY)
            queue.append(chunk, source, mark=queue.mark())
            for number in range(RECORDS_A_ROUND):
                # as far apart as control steps are
                now_ns += STEP_NS
                executed, _ = controller.step(now_ns, lambda: sensed)
                begin_ns = time.perf_counter_ns()
                recorder.step_finished(
                    now_ns, number, executed, controller, ControlAuthority.POLICY
                )
                if done >= WARM_UP_ROUNDS:
                    told_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
            writer.drain()
    goal = f'median of a control step told under {STEP_GOAL_MS * 1000:g} us'
    return Case(
        'control step',
        parameters=microseconds({'told': told_ms}),
        counts={'lost': sum(writer.losses.values())},
        series_ms={'told': told_ms},
        goals={goal: summarize(told_ms)['p50'] < STEP_GOAL_MS},
    )


def measure_writing(rounds: int, folder: Path) -> Case:
    """Encode and write records one at a time in this thread."""
    series_ms: dict[str, list[float]] = {}
    bytes_a_record = {}
    for kind, make in KINDS.items():
        writer = new_writer(folder)
        writer.drain()
        empty = writer.path.stat().st_size
        write = partial(write_one, writer)
        series_ms[kind] = [write(make(number)) for number in range(rounds)]
        bytes_a_record[f'bytes of {kind}'] = (writer.path.stat().st_size - empty) // rounds
        writer.close()
    return Case(
        'written', parameters=microseconds(series_ms) | bytes_a_record, series_ms=series_ms
    )


def write_one(writer: TraceWriter, record: TraceRecord) -> float:
    """Return what encoding and writing costs [ms]."""
    writer.write(record)
    return took_ms(writer.drain)


@contextmanager
def running(folder: Path) -> Iterator[TraceWriter]:
    """Give a writer whose thread writes, as in a node."""
    writer, stop = new_writer(folder), threading.Event()
    thread = threading.Thread(target=writer.run, args=(stop,), name='trace')
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        writer.wake()
        thread.join()
        writer.close()


def new_writer(folder: Path) -> TraceWriter:
    header = records.header(
        node='/edge_controller',
        role='edge',
        version='0',
        wall_s=0.0,
        now_ns=0,
        policies=[records.policy('a', POLICY)],
        parameters=PARAMETERS,
    )
    return TraceWriter(
        folder, 'trace', header, limit_bytes=LIMIT_BYTES, keep_files=KEEP_FILES, log_warning=print
    )
