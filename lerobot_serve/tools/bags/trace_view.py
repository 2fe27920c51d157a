# SPDX-License-Identifier: Apache-2.0
"""
Presents a bag as trace records: each robot is the run of an edge, or several where its edge was
started again; each router is a run of its own.

Times are the recorder's, nanoseconds since 1970. A bag does not record parameters and may lack
messages, so the audit of a bag holds for the recorded part only. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path

from lerobot_serve.contract.cdr import CdrReader
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, ExecutedAction, RoutingDecision
from lerobot_serve.contract.schema import Flag
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CHUNK,
    DECISION,
    EDGE_STATE,
    EXECUTED,
    OBSERVATION,
)
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.request_pairs import (
    is_robot_reply_topic,
    RequestPairer,
    RequestReply,
)
from lerobot_serve.tools.traces.trace_run import TraceEntry, TraceRun
from lerobot_serve.trace.format.records import (
    ExecutedRecord,
    HeaderRecord,
    PlacementRecord,
    Record,
    RecordIds,
    RequestRecord,
    routing,
    StateRecord,
    STATUSES,
    TraceRecord,
)
from lerobot_serve.trace.format.replay_field import chunk_range, repeated_rows

ROBOT_FILE_LIMIT_BYTES = 1 << 20
LimitsIn = Callable[[str], str]
# messages of two topics may be recorded this much out of order
SLACK_NS = 50_000_000
PLACEMENT_FIELDS = set(PlacementRecord.__struct_fields__) - set(TraceRecord.__struct_fields__)


class BagRun(TraceRun):
    """Records of one robot or router in a bag; the lines are its messages."""

    is_trace = False
    slack_ns = SLACK_NS
    no_age_reason = 'bags do not record max_action_age_s; pass --max-action-age'
    no_limits_reason = 'the bag has no robot file of this edge; pass it with --robot'

    def __init__(
        self, path: Path, number: int, *, role: str, node: str, parameters: Record
    ) -> None:
        super().__init__(path, number)
        self.role, self.node = role, node
        self.header_parameters = self.parameters = parameters
        # by topic: two edges with one name are no edge that was started again
        self._control_steps: dict[str, int] = {}

    def header(self, now_ns: int) -> HeaderRecord:
        """Return the equivalent of the header of a trace."""
        return HeaderRecord(now_ns, node=self.node, role=self.role)

    def continues(self, record: TraceRecord, topic: str) -> bool:
        """
        Return whether a record is of this process: an edge that is started or configured again
        counts its control steps from 0 again.
        """
        step = record.control_step if isinstance(record, ExecutedRecord) else None
        return step is None or step >= self._control_steps.get(topic, 0)

    def set_next(self, number: int, record: TraceRecord, topic: str) -> None:
        """Set the next record, and the number and topic of its message."""
        self._line = number
        self.lines += 1
        if isinstance(record, ExecutedRecord) and record.control_step is not None:
            self._control_steps[topic] = record.control_step


class BagTrace:
    """`runs` has the runs found so far. `read` raises BagError."""

    def __init__(
        self,
        path: Path,
        *,
        max_action_age_s: float | None = None,
        limits: str = '',
        limits_in: LimitsIn | None = None,
    ) -> None:
        """
        `max_action_age_s` and `limits` replace the parameters of the edges, which a bag does not
        record; `limits` has the format of the header of a trace. Without it `limits_in` returns
        those of a robot file in the bag, and raises RobotFileError. Raises BagError.
        """
        self._bag, self._limits_in = Bag(path), None if limits else limits_in
        # by the full name of the edge; and why a robot file has none
        self._limits: dict[str, str] = {}
        self._why_not: dict[str, str] = {}
        # a bag does not record the interpolation
        self._parameters: Record = {'interpolation_multiplier': None}
        if max_action_age_s is not None:
            self._parameters['max_action_age_s'] = max_action_age_s
        if limits:
            self._parameters['limits'] = limits
        self.runs: list[TraceRun] = []
        self._runs: dict[tuple[str, str], BagRun] = {}
        self._before: dict[tuple[str, str], str] = {}
        self._pairs = RequestPairer(is_robot_reply_topic)

    def read(self, first_number: int = 0) -> Iterator[TraceEntry]:
        """
        Yield the records with their reception times, never decreasing; runs are numbered from
        `first_number`.
        """
        latest_ns = 0
        for number, message in enumerate(self._bag.read(), 1):
            latest_ns = max(latest_ns, message.stamp_ns)
            if self._limits_in and message.is_robot_file:
                self._read_robot_file(message, self._limits_in)
            for role, name, record in self._records_of(message):
                run = self._runs.get((role, name))
                if run is None or not run.continues(record, message.topic):
                    run = self._begin(role, name, first_number + len(self.runs))
                    yield TraceEntry(latest_ns / 1e9, run, run.header(message.stamp_ns))
                run.set_next(number, record, message.topic)
                if isinstance(record, ExecutedRecord):
                    self._add_limits(run, message.topic)
                yield TraceEntry(latest_ns / 1e9, run, record)
        for each in self.runs:
            # the recorder may have missed messages of an edge
            each.is_damaged = each.role == 'edge' or not self._bag.is_complete

    def _read_robot_file(self, message: BagMessage, limits_in: LimitsIn) -> None:
        node = message.node
        try:
            text = CdrReader(message.data).string(ROBOT_FILE_LIMIT_BYTES, 'robot file')
            self._limits[node] = limits_in(text)
        except (Malformed, RobotFileError) as error:
            self._why_not[node] = str(error)

    def _add_limits(self, run: BagRun, topic: str) -> None:
        node = topic.rpartition('/')[0]
        if limits := self._limits.get(node):
            run.header_parameters['limits'] = limits
        run.no_limits_reason = self._why_not.get(node, run.no_limits_reason)

    def _begin(self, role: str, name: str, number: int) -> BagRun:
        run = BagRun(
            self._bag.path, number, role=role, node=name, parameters=dict(self._parameters)
        )
        self.runs.append(run)
        self._runs[role, name] = run
        return run

    def _records_of(self, message: BagMessage) -> Iterator[tuple[str, str, TraceRecord]]:
        """Yield role, name and record for each run that a message belongs to."""
        try:
            if message.type == EXECUTED:
                executed = message.record()
                yield 'edge', executed.client_id, executed_record(message.stamp_ns, executed)
            elif message.type == EDGE_STATE:
                yield from self._changes(message.stamp_ns, message.record())
            elif message.type == DECISION:
                node = message.node
                yield 'router', node, decision_record(message.stamp_ns, message.record())
            elif message.type in (OBSERVATION, CHUNK):
                for pair in self._pairs.add(message):
                    chunk = wire_chunk.decode(pair.reply)
                    yield 'edge', chunk.client_id, request_record(pair, chunk)
        except Malformed:
            self._bag.damage.append(f'a message of {message.topic} cannot be read')

    def _changes(self, now_ns: int, now: EdgeState) -> Iterator[tuple[str, str, TraceRecord]]:
        for component, value in (('connection', now.state.word), ('rung', now.rung.word)):
            key = now.client_id, component
            before = self._before.get(key)
            self._before[key] = value
            if before is not None and before != value:
                ids = RecordIds(now.client_id, episode_id=now.episode_id)
                record = StateRecord(
                    now_ns,
                    *ids.fields(),
                    component=component,
                    before=before,
                    after=value,
                    reason=now.reason,
                )
                yield 'edge', now.client_id, record


def executed_record(now_ns: int, executed: ExecutedAction) -> ExecutedRecord:
    """Return the record of a command."""
    is_played = executed.rung == EdgeState.Rung.POLICY
    ids = RecordIds(
        executed.client_id,
        executed.session_epoch if is_played else None,
        executed.seq if is_played else None,
        executed.episode_id,
    )
    raw, commanded = (
        values.tolist() if values.size else None for values in (executed.raw, executed.commanded)
    )
    return ExecutedRecord(
        now_ns,
        *ids.command_fields(),
        control_step=executed.control_step,
        cage_result=executed.cage_result.word,
        rung=executed.rung.word,
        raw_actions=raw,
        commanded=commanded,
        chunk_row=executed.chunk_row if is_played else None,
        age_s=finite(executed.age_s) if is_played else None,
        slot=executed.slot,
        policy=executed.policy,
        reason=executed.reason,
    )


def decision_record(now_ns: int, decision: RoutingDecision) -> PlacementRecord:
    """Return the record of a placement."""
    ids = RecordIds(decision.client_id, episode_id=decision.episode_id)
    values = {name: getattr(decision, name) for name in PLACEMENT_FIELDS}
    values['split_version'] = decision.split_version or None
    return PlacementRecord(now_ns, *ids.fields(), **values)


def request_record(pair: RequestReply, chunk: Chunk) -> RequestRecord:
    """Return the record of a request in the format of an edge trace. Raises Malformed."""
    request = wire_observation.decode(pair.request)
    header = chunk.header
    ended_ns = max(pair.request_ns, pair.reply_ns)
    ids = RecordIds(chunk.client_id, header.session_epoch, header.seq, chunk.episode_id)
    made = RequestRecord(
        ended_ns,
        *ids.fields(),
        status=STATUSES.get(chunk.status, str(chunk.status)),
        episode=header.episode,
        routing=routing(chunk.slot),
        policy=chunk.policy,
        seed=chunk.seed,
        queue_wait_ms=finite(chunk.queue_wait_ms),
        processing_ms=finite(chunk.processing_ms),
        inference_ms=finite(chunk.inference_ms),
        round_trip_ms=(ended_ns - pair.request_ns) / 1e6,
        request_bytes=len(pair.request),
        chunk_bytes=len(pair.reply),
        chunk_range=chunk_range(chunk, repeated_rows(request)),
        superseded=chunk.superseded,
        reason=chunk.status_text,
    )
    if request.prefix_model.size or request.prefix_robot.size:
        made.prefix_policy = request.prefix_policy
        made.prefix_ignored = bool(header.flags & Flag.PREFIX_IGNORED)
    return made


def finite(value: float) -> float | None:
    """Return a finite number, None for others, as a trace has them."""
    return value if isfinite(value) else None
