# SPDX-License-Identifier: Apache-2.0
"""
Reads requests and replies from a bag, a capture or a policy server's trace, in the order of the
replies. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lerobot_serve.contract.data_path.chunk import read_reply_summary
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.errors import UserError
from lerobot_serve.tools.bags.message import CHUNK, OPEN_SESSION, read_open_session
from lerobot_serve.tools.bags.reader import Bag, is_bag
from lerobot_serve.tools.bags.request_pairs import is_no_second_draw, RequestPairer
from lerobot_serve.tools.traces.trace_run import TraceQuery, TraceRun
from lerobot_serve.trace.format import incident_file, replay_field
from lerobot_serve.trace.format.records import DamagedRecord, DropRecord, RequestRecord

# the fields of OpenSession that a reply depends on
TERMS = ('robot_type', 'task', 'rtc_execution_horizon')
NEEDED_PARAMETERS = ('trace_images', 'trace_instructions')
ALTERNATIVES = 'or replay a bag (lerobot-serve record) or a capture of a server (capture_folder)'


class ReplayError(UserError, ValueError):
    """A recording that cannot be replayed, with the reason and the remedy."""


class ReplayRequest(NamedTuple):
    """A request and its reply as CDR bytes, with the known fields of its session."""

    request: bytes
    reply: bytes
    info: dict[str, Any]


class BagSource:
    """Requests in a bag. After `read`, `notes` lists missing data. Raises BagError."""

    def __init__(self, path: Path) -> None:
        self._bag = Bag(path)
        self._pairs = RequestPairer()
        # by client and session; the last request counts
        self._sessions: dict[tuple[str, int], OpenSessionRequest] = {}
        self._events_unread = 0
        self._policies = count_policies(self._survey())

    def _survey(self) -> Iterator[bytes]:
        """
        Yield the replies and index the sessions, which may be recorded after their requests.
        """
        for message in self._bag.read():
            if message.type == CHUNK and is_no_second_draw(message.topic):
                yield message.data
            try:
                if message.type == OPEN_SESSION and (opened := read_open_session(message.data)):
                    self._sessions[opened.client_id, opened.session_epoch] = opened
            except Malformed:
                self._events_unread += 1

    def policies(self) -> Counter[str]:
        """Return the number of replies of each policy, by fingerprint."""
        return self._policies

    def read(self) -> Iterator[ReplayRequest]:
        self._pairs = RequestPairer()
        for pair in self._pairs.join(self._bag.read()):
            start = read_envelope(pair.request)
            agreed = self._sessions.get((start.client_id, start.header.session_epoch))
            info = {name: getattr(agreed, name) for name in TERMS} if agreed else {}
            yield ReplayRequest(pair.request, pair.reply, info)

    @property
    def without_reply(self) -> int:
        return self._pairs.without_reply

    @property
    def notes(self) -> list[str]:
        counted = (
            (self._pairs.without_request, 'replies without a request in the bag'),
            (self._pairs.malformed + self._events_unread, 'messages that cannot be read'),
        )
        return [*self._bag.damage, *(f'{what}: {count}' for count, what in counted if count)]


class IncidentSource:
    """Requests in a capture of a policy server. Raises IncidentError."""

    def __init__(self, path: Path) -> None:
        pairs = incident_file.read_exchanges(path)
        self._with_reply = [ReplayRequest(*pair) for pair in pairs if pair.answer]
        self.without_reply = len(pairs) - len(self._with_reply)
        self.notes: list[str] = []

    def policies(self) -> Counter[str]:
        return count_policies(recorded.reply for recorded in self._with_reply)

    def read(self) -> Iterator[ReplayRequest]:
        yield from self._with_reply


class TraceSource:
    """
    Requests in the traces of policy servers with all their images and instructions: one run, or
    all runs below a folder. Traces of edges and routers are ignored.

    Raises ReplayError and TraceError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._policies: Counter[str] = Counter()
        self._missing = 0
        self._query = TraceQuery([path])
        for _, run, record in self._query.by_time():
            if is_server_run(run) and isinstance(record, RequestRecord):
                self._survey(record)
        if not self._policies:
            self._check(self._query.runs)
        self._bare = [
            run for run in self._query.runs if is_server_run(run) and why_insufficient(run)
        ]
        self._clear()

    def policies(self) -> Counter[str]:
        return self._policies

    def read(self) -> Iterator[ReplayRequest]:
        self._clear()
        for _, run, record in self._query.by_time():
            if not is_server_run(run) or why_insufficient(run):
                continue
            if isinstance(record, RequestRecord):
                yield from self._request(record)
            elif isinstance(record, DropRecord) and record.item == 'request':
                self._lost += record.count or 0
            elif isinstance(record, DamagedRecord):
                self._damaged += 1

    @property
    def notes(self) -> list[str]:
        counted = (
            (self._damaged, 'damaged lines in the trace'),
            (self._lost, 'requests that the trace lost: hidden states may differ'),
            (self._unread, 'requests that the server could not read, not in the trace'),
        )
        bare = [f'{run.path.name} has {why_insufficient(run)}: not compared' for run in self._bare]
        return [*bare, *(f'{what}: {count}' for count, what in counted if count)]

    def _clear(self) -> None:
        self.without_reply = self._damaged = self._lost = self._unread = 0

    def _survey(self, record: RequestRecord) -> None:
        if record.replay is not None:
            self._policies[record.policy] += 1
        else:
            self._missing += record.status == 'ok'

    def _check(self, runs: list[TraceRun]) -> None:
        """Raise ReplayError for runs without requests to replay."""
        servers = list(filter(is_server_run, runs))
        if not servers:
            roles = ' and '.join(sorted({run.role for run in runs}))
            raise ReplayError(
                f'{self._path} is a trace of {roles} only: a replay needs the trace of a '
                f'policy_server written with trace_images: full; name that one, {ALTERNATIVES}'
            )
        why = next(filter(None, map(why_insufficient, servers)), '')
        if why or self._missing:
            why = (
                why or 'requests without observation and reply (too large, or of an older version)'
            )
            raise ReplayError(
                f'{self._path} has {why}: a replay needs {NEEDED_PARAMETERS[0]}: full and '
                f'{NEEDED_PARAMETERS[1]}: full; start the policy_server with both, {ALTERNATIVES}'
            )

    def _request(self, record: RequestRecord) -> Iterator[ReplayRequest]:
        try:
            kept = replay_field.decode_field(record)
        except ValueError:
            self._damaged += 1
            return
        if kept is None and record.left_out_bytes is not None:
            self._lost += 1
        elif kept is None:
            self.without_reply += 1
        elif not kept.request and record.status == 'bad_observation':
            self._unread += 1
        else:
            yield ReplayRequest(*kept)


ReplaySource = BagSource | IncidentSource | TraceSource


def open_source(path: Path) -> ReplaySource:
    """Open a recording. Raises ReplayError, BagError, IncidentError and TraceError."""
    if not path.exists():
        raise ReplayError(f'{path} does not exist; name a bag, a capture or a trace')
    if path.suffix == incident_file.SUFFIX:
        return IncidentSource(path)
    if is_bag(path):
        return BagSource(path)
    if path.suffix == '.jsonl' or (path.is_dir() and any(path.rglob('*.jsonl'))):
        return TraceSource(path)
    raise ReplayError(f'{path} is neither a bag nor a capture nor a trace; name one of these')


def is_server_run(run: TraceRun) -> bool:
    """Return whether a policy server or an unknown node wrote it."""
    return run.role in ('', 'server')


def why_insufficient(run: TraceRun) -> str:
    """Return the parameters with which a run lacks data for a replay, empty otherwise."""
    values = [
        f'{name}: {run.parameters[name]}' for name in NEEDED_PARAMETERS if name in run.parameters
    ]
    is_bare = any(run.parameters.get(name, 'full') != 'full' for name in NEEDED_PARAMETERS)
    return ', '.join(values) if is_bare else ''


def count_policies(replies: Iterator[bytes]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for raw in replies:
        try:
            counts[read_reply_summary(raw).policy] += 1
        except Malformed:
            # counted when it is read
            continue
    return counts
