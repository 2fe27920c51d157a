# SPDX-License-Identifier: Apache-2.0
"""
The kinds of records of a trace: each field is declared once, for who writes and who reads.

A field that is None or an empty text is not written. `mono_ns` is the monotonic clock of the node.
A reader ignores fields and kinds that it does not know; what it may find missing or damaged has a
value that says so (tools/traces/fields.py). Any thread; one thread changes a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
import re
from typing import Any, cast, NamedTuple

from msgspec import field, Struct, structs
import numpy as np

from lerobot_serve.arrays import FloatArray
from lerobot_serve.contract.names import session_name
from lerobot_serve.contract.schema import Status
from lerobot_serve.trace.format.run_files import ROLES, SCHEMA_VERSION

# the fields of a record, or of a part of it, by their names in the file
Record = dict[str, Any]
Actions = Sequence[float] | FloatArray

# of a request, by its number on the wire
STATUSES = {int(status): status.name.lower() for status in Status}
# of a changed parameter: any value, also None
WRITTEN_ALWAYS = ('old', 'new')
# of the reasons of the edge and the cage for a hold without a known state
STATE_UNKNOWN_WORDS = ('state is missing', 'state was missing', 'position unknown')
# the reason of a router that hears nothing of the servers of the episode's slot, which it names
# first: of the request, or of the server at all
SILENT_SERVER = re.compile(
    r'no eligible slot \(slot [^:]+: (no reply within|[^ ]+: server unavailable)'
)


class RecordIds(NamedTuple):
    """What joins the records of edge, router and server."""

    client_id: str = ''
    session_epoch: int | None = None
    seq: int | None = None
    episode_id: str = ''

    def fields(self) -> tuple[str, str, int | None, int | None, str]:
        """Return the fields of a record, including the session name of client and epoch."""
        epoch = self.session_epoch
        name = session_name(self.client_id, epoch) if self.client_id and epoch is not None else ''
        return self.client_id, name, epoch, self.seq, self.episode_id

    def command_fields(self) -> tuple[str, str, int | None, int | None, str]:
        """Return the fields of a command, in the control step: without the session name."""
        return self.client_id, '', self.session_epoch, self.seq, self.episode_id


class DeferredFields:
    """
    Fields of a record that are expensive: the hash of an image takes about 1 ms per MB. `fields`
    returns them, in the thread that writes; `bytes` is the memory held until then.
    """

    def __init__(self, fields: Callable[[], Record], held_bytes: int) -> None:
        self.fields, self.bytes = fields, held_bytes


class TraceRecord(Struct, tag_field='kind'):
    """Fields that a record of any kind may have; the others follow `*ids.fields()`."""

    mono_ns: int | None = None
    client_id: str = ''
    session_id: str = ''
    session_epoch: int | None = None
    seq: int | None = None
    episode_id: str = ''

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return str(self.__struct_config__.tag)


class OtherRecord(TraceRecord, tag='other'):
    """A record of an unknown kind."""


class HeaderRecord(TraceRecord, tag='header', kw_only=True):
    """
    The first line of each part; `part` and `continues` are set when it is written.

    Without `policies` they are not known yet; a record `policies` follows when they are.
    """

    schema_version: Any = None
    node: str = ''
    role: str = ''
    version: Any = ''
    wall_time: str = ''
    policies: list[Any] | None = None
    parameters: Record = {}
    part: int | None = None
    continues: str = ''


class ClockRecord(TraceRecord, tag='clock', kw_only=True):
    """Another time of day: that of the machine was set."""

    wall_time: str


class FooterRecord(TraceRecord, tag='footer', kw_only=True):
    """The last line of each part; `records_lost` counts by reason, of the whole run."""

    records: int | None
    records_lost: dict[str, Any]
    end_reason: str


class DamagedRecord(TraceRecord, tag='damaged', kw_only=True):
    """An invalid line, which only a reader makes."""

    file: str
    reason: str
    text: str


class ParameterRecord(TraceRecord, tag='parameter', kw_only=True):
    """A changed parameter, redacted by the caller. `by` is who changed it, if that is known."""

    name: str
    by: str = ''
    old: Any
    new: Any


class CommandRecord(TraceRecord, tag='command', kw_only=True):
    """A command of an operator to a router: `by` is who and why, `reason` its effect."""

    name: str
    slot: str
    by: str
    reason: str


class PoliciesRecord(TraceRecord, tag='policies', kw_only=True):
    """The policies in use from now on; headers of later parts have them."""

    policies: list[Any] | None


class ExecutedRecord(TraceRecord, tag='executed', kw_only=True):
    """
    One command of an edge; `raw_actions` before the cage, `commanded` as sent to the robot, None
    for a step without a command.
    """

    control_step: int | None
    chunk_row: int | None = None
    age_s: float | None = None
    cage_result: str
    rung: str
    slot: str = ''
    policy: str = ''
    reason: str = ''
    raw_actions: list[Any] | None = field(name='raw', default=None)
    commanded: list[Any] | None = None

    @property
    def is_played(self) -> bool:
        """Whether the command is an action of a chunk."""
        return self.rung == 'policy'

    @property
    def is_held_for_state(self) -> bool:
        """Whether the cage held the command because the state of the robot was not known."""
        return self.cage_result == 'held' and any(
            words in self.reason for words in STATE_UNKNOWN_WORDS
        )

    @property
    def is_by_person(self) -> bool:
        """Whether a person who has taken over commands."""
        return self.rung == 'person'


class RequestRecord(TraceRecord, tag='request', kw_only=True):
    """
    One request with its result, recorded by edge, router or server.

    `task` and `images` are redacted by the caller; `later` has fields that the thread which writes
    works out. `left_out_bytes` stands for images and `replay`, where the line was too long.
    """

    status: str = ''
    episode: int | None = None
    routing: Record | None = None
    server: str = ''
    policy: str = ''
    seed: int | None = None
    queue_wait_ms: float | None = None
    processing_ms: float | None = None
    inference_ms: float | None = None
    round_trip_ms: float | None = None
    request_bytes: int | None = None
    chunk_bytes: int | None = None
    chunk_range: list[int] | None = None
    superseded: int | None = None
    prefix_policy: str = ''
    prefix_ignored: bool | None = None
    dropped: Record | None = None
    reason: str = ''
    task: str | None = None
    images: list[Record] | None = None
    replay: Any = None
    left_out_bytes: int | None = None
    later: DeferredFields | None = None

    @property
    def slot(self) -> str:
        """The slot that the request was routed to."""
        slot = (self.routing or {}).get('slot')
        return slot if type(slot) is str else ''

    @property
    def is_from_silent_server(self) -> bool:
        """Whether a router refused the request because it heard nothing of its server."""
        return SILENT_SERVER.match(self.reason) is not None


class PlacementRecord(TraceRecord, tag='placement', kw_only=True):
    """
    The placement or the move of an episode by a router; `split_version` is None without a shared
    state.
    """

    slot: str
    bucket: int | None
    split_percent: float | None
    moved: bool
    routing_key: str = ''
    missing_episode_id: bool | None = None
    sticky: bool | None = None
    server: str = ''
    policy: str = ''
    reason: str = ''
    split_version: int | None = None


class StateRecord(TraceRecord, tag='state', kw_only=True):
    """A change of state of one component (connection, ladder, slot_a, ...)."""

    component: str
    before: str = field(name='from')
    after: str = field(name='to')
    reason: str = ''


class DropRecord(TraceRecord, tag='drop', kw_only=True):
    """A count of dropped items; `item` is their kind, if ambiguous."""

    reason: str
    count: int | None
    item: str = ''


class ShadowRecord(TraceRecord, tag='shadow', kw_only=True):
    """
    One comparison of a shadow with the live policy; `cage_would_trip` is None where the limits are
    unknown.
    """

    live_policy: str
    shadow_policy: str
    rows: int | None
    divergence: float | None
    divergence_in_spreads: float | None = None
    divergence_per_action: Record | None = None
    cage_would_trip: bool | None = None
    latency_ms: float | None = None


class OutcomeRecord(TraceRecord, tag='outcome', kw_only=True):
    """The outcome of an episode: success, failure or aborted."""

    outcome: str
    slot: str = ''
    policy: str = ''
    reason: str = ''


class ReportedOutcomeRecord(OutcomeRecord, tag='reported_outcome', kw_only=True):
    """The outcome of an episode as a router received it; an edge records its own episodes."""


class CanaryRecord(TraceRecord, tag='canary', kw_only=True):
    """
    An event of the canary, with the policy of its plan; `share_percent` is the candidate's share
    from now on, `evidence` what a comparison passed with.
    """

    event: str
    reason: str
    policy: str = ''
    share_percent: float | None = None
    evidence: Record | None = None


class GateRecord(TraceRecord, tag='gate', kw_only=True):
    """
    A policy may drive in slot b from now on, by a result of its gate; `recordings` is the hash of
    what it was compared with `parent` on.
    """

    policy: str
    result: str
    parent: str
    recordings: str
    reason: str


class IncidentRecord(TraceRecord, tag='incident', kw_only=True):
    """An incident for an operator to investigate."""

    name: str
    reason: str = ''


KINDS: dict[str, type[TraceRecord]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        *(HeaderRecord, ClockRecord, FooterRecord, DamagedRecord, ParameterRecord, CommandRecord),
        *(PoliciesRecord, ExecutedRecord, RequestRecord, PlacementRecord, StateRecord),
        *(DropRecord, ShadowRecord, OutcomeRecord, ReportedOutcomeRecord, CanaryRecord),
        *(GateRecord, IncidentRecord),
    )
}


def header(
    *,
    node: str,
    role: str,
    version: str,
    wall_s: float,
    now_ns: int,
    parameters: Mapping[str, Any],
    policies: Sequence[Record] | None = None,
) -> HeaderRecord:
    """
    Return the first record of a file. `wall_s` (seconds since 1970) and `now_ns` are the same
    instant. Raises ValueError.
    """
    if role not in ROLES:
        raise ValueError(f'role must be one of {", ".join(ROLES)}, got {role!r}')
    return HeaderRecord(
        now_ns,
        schema_version=SCHEMA_VERSION,
        node=node,
        role=role,
        version=version,
        wall_time=wall_text(wall_s),
        policies=None if policies is None else list(policies),
        parameters=dict(parameters),
    )


def wall_text(wall_s: float) -> str:
    """Return a time of day as UTC."""
    text = datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec='milliseconds')
    return text.replace('+00:00', 'Z')


def policy(slot: str, fingerprint: str) -> Record:
    """Return one entry of `policies`; the fingerprint is id@hash."""
    policy_id, _, policy_hash = fingerprint.rpartition('@')
    return {'slot': slot, 'policy_id': policy_id or policy_hash, 'policy_hash': policy_hash}


def routing(
    slot: str, *, routing_key: str = '', missing_episode_id: bool = False, sticky: bool = False
) -> Record:
    """Return the field `routing` of a request."""
    return {
        'slot': slot,
        'routing_key': routing_key,
        'missing_episode_id': missing_episode_id,
        'sticky': sticky,
    }


def copied(actions: Actions | None) -> list[Any] | None:
    """Return actions that the caller may change; who writes and reads takes them as a list."""
    return None if actions is None else cast(list[Any], np.array(actions))


def enum_name(value: str | Enum) -> str:
    """Return the name of an enumeration member as written in a trace."""
    return value.name.lower() if isinstance(value, Enum) else value


def fields_of(record: TraceRecord) -> Record:
    """Return a record by the names of its fields as written, those worked out now included."""
    made: Record = {'kind': record.kind}
    for name, value in zip(record.__struct_encode_fields__, structs.astuple(record), strict=True):
        # an array has no truth
        if value is None or (type(value) is str and not value):
            if name in WRITTEN_ALWAYS:
                made[name] = value
        else:
            made[name] = value
    if later := made.pop('later', None):
        made |= {name: value for name, value in later.fields().items() if value not in (None, '')}
    return made
