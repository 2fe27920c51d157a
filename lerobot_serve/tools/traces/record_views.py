# SPDX-License-Identifier: Apache-2.0
"""
One view for each kind of record: its fields with their types.

A view holds the decoded JSON in `raw` and reads a field on access; a field that is
missing or of another type reads as absent (None, empty text, empty table, False). Nothing raises.
Only this module names the fields of records; mypy checks the code that reads them. Any thread.
"""

from __future__ import annotations

import re
from typing import Any

from lerobot_serve.tools.traces.fields import is_number, Record

# of the reasons of the edge and the cage for a hold without a known state
STATE_UNKNOWN_WORDS = ('state is missing', 'state was missing', 'position unknown')
# the reason of a router that hears nothing of the servers of the episode's slot, which it names
# first: of the request, or of the server at all
SILENT_SERVER = re.compile(
    r'no eligible slot \(slot [^:]+: (no reply within|[^ ]+: server unavailable)'
)


class _Field:
    """A field of a view; its name defaults to that of the attribute."""

    __slots__ = ('_name',)

    def __init__(self, name: str = '') -> None:
        self._name = name

    def __set_name__(self, owner: type[RecordView], name: str) -> None:
        self._name = self._name or name


# one function call per access, since statistics read millions of fields
class Text(_Field):
    """A text, empty for other types."""

    def __get__(self, view: RecordView, owner: type[RecordView]) -> str:
        value = view.raw.get(self._name)
        return value if type(value) is str else ''


class Number(_Field):
    """A finite number, None for other values."""

    def __get__(self, view: RecordView, owner: type[RecordView]) -> float | None:
        value = view.raw.get(self._name)
        return float(value) if is_number(value) else None


class Integer(_Field):
    """A whole number, None for other values."""

    def __get__(self, view: RecordView, owner: type[RecordView]) -> int | None:
        value = view.raw.get(self._name)
        return value if type(value) is int else None


class Flag(_Field):
    """Whether the field is exactly true."""

    def __get__(self, view: RecordView, owner: type[RecordView]) -> bool:
        return view.raw.get(self._name) is True


class Table(_Field):
    """Names and values, empty for other types."""

    def __get__(self, view: RecordView, owner: type[RecordView]) -> Record:
        value = view.raw.get(self._name)
        return value if type(value) is dict else {}


class Values(_Field):
    """A list of any items, None for other types."""

    def __get__(self, view: RecordView, owner: type[RecordView]) -> list[Any] | None:
        value = view.raw.get(self._name)
        return value if type(value) is list else None


class RecordView:
    """Fields that a record of any kind may have."""

    __slots__ = ('raw',)

    def __init__(self, raw: Record) -> None:
        self.raw = raw

    mono_ns = Integer()
    client_id = Text()
    session_epoch = Integer()
    seq = Integer()
    episode_id = Text()


class OtherRecord(RecordView):
    """A record of an unknown kind."""

    __slots__ = ()


class HeaderRecord(RecordView):
    """The first line of each part."""

    __slots__ = ()

    node = Text()
    role = Text()
    part = Integer()
    continues = Text()
    wall_time = Text()
    parameters = Table()


class ClockRecord(RecordView):
    """Another time of day: that of the machine was set."""

    __slots__ = ()

    wall_time = Text()


class FooterRecord(RecordView):
    """The last line of each part."""

    __slots__ = ()

    records = Integer()
    records_lost = Table()
    end_reason = Text()


class DamagedRecord(RecordView):
    """An invalid line."""

    __slots__ = ()

    reason = Text()


class ParameterRecord(RecordView):
    """A changed parameter; `old` and `new` may have any type. `by` is who changed it."""

    __slots__ = ()

    name = Text()
    by = Text()


class CommandRecord(RecordView):
    """A command of an operator to a router: `by` is who and why, `reason` its effect."""

    __slots__ = ()

    name = Text()
    slot = Text()
    by = Text()
    reason = Text()


class PoliciesRecord(RecordView):
    """The policies in use from now on."""

    __slots__ = ()


class ExecutedRecord(RecordView):
    """One command of an edge; `raw_actions` before the cage, `commanded` as sent."""

    __slots__ = ()

    control_step = Integer()
    chunk_row = Integer()
    age_s = Number()
    cage_result = Text()
    rung = Text()
    slot = Text()
    policy = Text()
    reason = Text()
    raw_actions = Values('raw')
    commanded = Values()

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


class RequestRecord(RecordView):
    """One request with its result, recorded by edge, router or server."""

    __slots__ = ()

    status = Text()
    routing = Table()
    server = Text()
    policy = Text()
    queue_wait_ms = Number()
    processing_ms = Number()
    inference_ms = Number()
    round_trip_ms = Number()
    prefix_policy = Text()
    prefix_ignored = Flag()
    dropped = Table()
    reason = Text()
    left_out_bytes = Integer()

    @property
    def slot(self) -> str:
        """The slot that the request was routed to."""
        slot = self.routing.get('slot')
        return slot if type(slot) is str else ''

    @property
    def is_from_silent_server(self) -> bool:
        """Whether a router refused the request because it heard nothing of its server."""
        return SILENT_SERVER.match(self.reason) is not None


class PlacementRecord(RecordView):
    """The placement or the move of an episode by a router."""

    __slots__ = ()

    slot = Text()
    policy = Text()
    server = Text()
    moved = Flag()
    reason = Text()
    split_version = Integer()


class StateRecord(RecordView):
    """A change of state of one component."""

    __slots__ = ()

    component = Text()
    before = Text('from')
    after = Text('to')
    reason = Text()


class DropRecord(RecordView):
    """A count of dropped items."""

    __slots__ = ()

    reason = Text()
    count = Integer()
    item = Text()


class ShadowRecord(RecordView):
    """One comparison of a shadow with the live policy."""

    __slots__ = ()

    live_policy = Text()
    shadow_policy = Text()
    divergence = Number()


class OutcomeRecord(RecordView):
    """The outcome of an episode."""

    __slots__ = ()

    outcome = Text()
    slot = Text()
    policy = Text()
    reason = Text()


class ReportedOutcomeRecord(OutcomeRecord):
    """The outcome of an episode as a router received it."""

    __slots__ = ()


class CanaryRecord(RecordView):
    """An event of the canary, with the policy of its plan."""

    __slots__ = ()

    event = Text()
    policy = Text()
    share_percent = Number()
    reason = Text()
    evidence = Table()


class GateRecord(RecordView):
    """A policy may drive in slot b from now on, by a result of its gate."""

    __slots__ = ()

    policy = Text()
    result = Text()
    parent = Text()
    recordings = Text()
    reason = Text()


class IncidentRecord(RecordView):
    """An incident for an operator to investigate."""

    __slots__ = ()

    name = Text()
    reason = Text()


VIEWS: dict[str, type[RecordView]] = {
    'header': HeaderRecord,
    'clock': ClockRecord,
    'footer': FooterRecord,
    'damaged': DamagedRecord,
    'parameter': ParameterRecord,
    'command': CommandRecord,
    'reported_outcome': ReportedOutcomeRecord,
    'policies': PoliciesRecord,
    'executed': ExecutedRecord,
    'request': RequestRecord,
    'placement': PlacementRecord,
    'state': StateRecord,
    'drop': DropRecord,
    'shadow': ShadowRecord,
    'outcome': OutcomeRecord,
    'canary': CanaryRecord,
    'gate': GateRecord,
    'incident': IncidentRecord,
}


def view_of(raw: Record) -> RecordView:
    """Return the view of a record by its kind."""
    return VIEWS.get(raw['kind'], OtherRecord)(raw)
