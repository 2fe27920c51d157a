# SPDX-License-Identifier: Apache-2.0
"""
Send copies of requests to the shadow and publish comparisons. The thread `shadow`.

The data path queues references without waiting; when the queue is full, new ones are dropped and
counted. Slow or blocking work (sessions with the shadow, publishing, comparing) runs in the thread
`shadow`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
import queue
import threading

from msgspec import structs

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk, ReplySummary
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Envelope, Header
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.shadow.comparator import ShadowComparator, ShadowComparison
from lerobot_serve.router.shadow.sample_joiner import RequestKey
from lerobot_serve.router.shadow.sampling import is_drawn_twice, is_shadowed
from lerobot_serve.router.shadow.sessions import (
    second_draw_client_id,
    SECOND_DRAW_SUFFIX,
    SESSIONS_LIMIT,
    ShadowClient,
    ShadowSessions,
)

# lower limit for requests, since they hold images
REQUESTS_LIMIT = 32
DEPOSITS_LIMIT = 1024
POLL_S = 0.5


class ShadowFeed(RequestObserver):
    """
    The data path calls `on_requested` and `on_replied`, the thread `shadow_replies` calls
    `on_shadow_chunk` and `on_second_draw`; `run` is the body of the thread `shadow`.
    Any thread may call `comparator.summary`.
    `second_draw_client` returns the client for a second draw of a session, None without one.
    """

    def __init__(
        self,
        comparator: ShadowComparator,
        shadow: ShadowClient,
        second_draw_client: Callable[[ClientSession], ShadowClient | None],
        publish: Callable[[ShadowComparison, tuple[str, ...]], None],
        rules: RouterParameters,
        context: NodeContext,
    ) -> None:
        self.comparator, self._shadow, self._second_draw_client = (
            comparator,
            shadow,
            second_draw_client,
        )
        self._publish, self.rules = publish, rules
        self._clock, self._log_warning = context.clock, context.log_warning
        self._deposits: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting_requests = 0
        self._count_lock = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._sessions = ShadowSessions(context.clock, context.log_warning)
        self._action_names: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        # policies that use random numbers
        self._stochastic: set[str] = set()

    # the data path's threads

    def on_requested(
        self, session: ClientSession, raw: Raw, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Queue a request, if it is sampled, and its execution report."""
        start = Envelope(header, session.request.client_id, session.episode_id)
        self.on_refused(session, header, executed)
        if not is_shadowed(RequestKey.of(start), self.rules.shadow_sample_percent):
            return
        with self._count_lock:
            has_room = self._waiting_requests < REQUESTS_LIMIT
            self._waiting_requests += has_room
        if not has_room:
            self._deposit(partial(self._record_unsent, start, 'shadow_overflow'))
        elif not self._deposit(partial(self._send_request, session, raw, start)):
            self._forget_request()

    def on_refused(
        self, session: ClientSession, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Queue the execution report of a request; a refused one has no other use."""
        if executed:
            start = Envelope(header, session.request.client_id, session.episode_id)
            self._deposit(partial(self.comparator.on_executed, start, executed))

    def on_replied(
        self, request: InFlightRequest, server: str, raw: bytes, reply: ReplySummary
    ) -> None:
        """Queue a live reply, if it is sampled."""
        if is_shadowed(RequestKey.of(reply.start), self.rules.shadow_sample_percent):
            self._deposit(partial(self._record_live, raw, reply))

    # the control thread

    def on_session_closed(self, session_request: OpenSessionRequest) -> None:
        """Queue the closing of the shadow sessions of a closed session."""
        self._deposits.put(partial(self._sessions.close, session_request))

    def finish(self, limit_s: float) -> bool:
        """Wait until all queued jobs have run; return False after the time limit."""
        done = threading.Event()
        self._deposits.put(done.set)
        return done.wait(limit_s)

    # the thread `shadow_replies`

    def on_shadow_chunk(self, raw: bytes) -> None:
        self._deposit(partial(self._record_shadow, raw, self._clock()))

    def on_second_draw(self, raw: bytes) -> None:
        self._deposit(partial(self._record_second_draw, raw, self._clock()))

    def _deposit(self, job: Callable[[], None]) -> bool:
        """Queue a job, if the queue is not full; return whether it is queued."""
        has_room = self._deposits.qsize() < DEPOSITS_LIMIT
        if has_room:
            self._deposits.put(job)
        else:
            self._drop('shadow_overflow')
        return has_room

    def _forget_request(self) -> None:
        """Decrement the count of waiting requests."""
        with self._count_lock:
            self._waiting_requests -= 1

    def _drop(self, reason: str) -> None:
        with self._count_lock:
            self._dropped[reason] += 1

    def drops(self) -> dict[str, int]:
        """Return the counts of dropped samples by reason; any thread."""
        # a copy: the thread may count a new reason meanwhile
        compared = Counter(dict(self.comparator.drops))
        with self._count_lock:
            return dict(self._dropped + compared)

    # the thread `shadow`

    def run(self, stop: threading.Event) -> None:
        """Run queued jobs and publish comparisons until `stop` is set and `wake` is called."""
        while not stop.is_set():
            try:
                job = self._deposits.get(timeout=POLL_S)
            except queue.Empty:
                job = None
            if job:
                job()
            for comparison in self.comparator.poll(self._clock()):
                names = self._action_names.get(comparison.client_id, ())
                self._publish(comparison, names)
        self.comparator.close()

    def wake(self) -> None:
        """End the current wait; any thread."""
        self._deposits.put(None)

    def _send_request(self, session: ClientSession, raw: Raw, start: Envelope) -> None:
        self._forget_request()
        if not self._open_shadow(session.request):
            self._record_unsent(start, 'shadow_no_session')
            return
        self.comparator.on_live_request(start, self._clock())
        self._shadow.send(raw)
        if self._wants_second_draw(session, RequestKey.of(start)):
            self._send_second_draw(session, raw, start)

    def _open_shadow(self, session_request: OpenSessionRequest) -> bool:
        """Open the session with the shadow if needed; return whether it is open."""
        if self._sessions.knows(self._shadow, session_request):
            return True
        if not self._sessions.open(self._shadow, session_request):
            return False
        self._action_names[session_request.client_id] = session_request.action_names
        if len(self._action_names) > SESSIONS_LIMIT:
            self._action_names.popitem(last=False)
        problem = self.comparator.on_session(session_request)
        if problem:
            self._log_warning(f'limits of {session_request.client_id!r}: {problem}')
        return True

    def _wants_second_draw(self, session: ClientSession, key: RequestKey) -> bool:
        return bool(self._stochastic) and is_drawn_twice(key, self.rules.shadow_spread_percent)

    def _send_second_draw(self, session: ClientSession, raw: Raw, start: Envelope) -> None:
        """Send the request to the live policy under another client_id for a second draw."""
        client, name = self._second_draw_client(session), second_draw_client_id(start.client_id)
        if client is None or len(name.encode()) > ID_LIMIT:
            self._drop('second_draw_no_room')
            return
        if not self._sessions.open(client, structs.replace(session.request, client_id=name)):
            self._drop('second_draw_no_session')
            return
        try:
            observation = structs.replace(wire_observation.decode(raw), client_id=name)
            client.send(wire_observation.encode(observation))
        except (Malformed, Unencodable):
            self._drop('second_draw_unencodable')

    def _record_unsent(self, start: Envelope, reason: str) -> None:
        self.comparator.on_unsent(start, reason, self._clock())

    def _record_live(self, raw: bytes, reply: ReplySummary) -> None:
        (self._stochastic.add if reply.seed else self._stochastic.discard)(reply.policy)
        try:
            self.comparator.on_live_chunk(wire_chunk.decode(raw), self._clock())
        except Malformed as error:
            self._drop(error.reason)

    def _record_shadow(self, raw: bytes, arrived_ns: int) -> None:
        if chunk := self._reply(raw):
            self.comparator.on_shadow_chunk(chunk, arrived_ns)

    def _record_second_draw(self, raw: bytes, arrived_ns: int) -> None:
        if chunk := self._reply(raw):
            client_id = chunk.client_id.removesuffix(SECOND_DRAW_SUFFIX)
            key = RequestKey(client_id, chunk.header.session_epoch, chunk.header.seq)
            self.comparator.on_second_draw(key, chunk, arrived_ns)

    def _reply(self, raw: bytes) -> Chunk | None:
        """Return a reply, and forget its session if it has none; None if it cannot be read."""
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed as error:
            self._drop(error.reason)
            return None
        if chunk.status == Status.NO_SESSION:
            self._sessions.forget(chunk.client_id)
        return chunk
