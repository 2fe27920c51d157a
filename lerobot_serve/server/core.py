# SPDX-License-Identifier: Apache-2.0
"""
One loaded policy with its sessions, request queue and admission. No ROS.

Comments group the methods by thread. Configuring the node creates it, cleaning up removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import time
from typing import NamedTuple

from msgspec.structs import replace

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.chunk import Chunk, retry_after
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import read_queue_remaining
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import MsgType, Refusal, StateClass, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.quotas import NoSessionLimiter, Quotas
from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.inference.request_validation import error_chunk
from lerobot_serve.server.inference.schedulers import make_scheduler
from lerobot_serve.server.inference.worker import InferenceWorker
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import LOAD_WINDOW_NS, ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions import session_validation
from lerobot_serve.server.sessions.session_table import Session, SessionTable

MAX_QUEUE_S = 60.0
ONE_SHOT_DEFERRAL_NS = 1_000_000_000
# a slower policy would delay the requests of other clients in the thread that receives them
RECEIVING_THREAD_SERVICE_S = 0.002
NO_OBSERVER = RequestObserver()


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load of the server, for a client that chooses among several."""

    load: float
    predicted_delay_ms: float
    active_sessions: int
    max_sessions: int


class Arrival(NamedTuple):
    """A request to answer in the thread that received it: with its refusal, or by the policy."""

    queued: QueuedRequest
    refusal: Chunk | None


class ServerCore:
    """See the module."""

    def __init__(
        self,
        worker: InferenceWorker,
        request_queue: RequestQueue,
        statistics: ServerStatistics,
        parameters: ServerParameters,
        observer: RequestObserver = NO_OBSERVER,
        send_no_session: Callable[[Chunk], None] = lambda _: None,
    ) -> None:
        """
        It does not accept sessions yet. `observer` receives sessions and the requests that are
        dropped before the policy; `send_no_session` publishes the replies to clients without a
        session, which have no reply topic.
        """
        self.worker, self.description = worker, worker.description
        self.sessions = SessionTable(self.description, parameters)
        self.quotas = Quotas()
        self._request_queue, self._statistics, self._observer = request_queue, statistics, observer
        self._no_session_limiter = NoSessionLimiter()
        self._publish_no_session = send_no_session
        self._refusal: SessionRefused | None = SessionRefused(
            Refusal.NOT_READY, 'configured, not active; activate the node'
        )
        self.apply_parameters(parameters)

    # intake thread

    def enqueue(self, raw: Raw, now_ns: int, *, may_serve: bool = False) -> Arrival | None:
        """
        Queue a request. Return it with its reply if it is refused at once; if the calling thread
        `may_serve`, return it without a reply where that thread is to serve it now.
        """
        try:
            start, queue_remaining_s = read_queue_remaining(raw)
        except Malformed as error:
            self._statistics.record_drop(error.reason)
            return None
        header = start.header
        session = self.sessions.find(start.client_id, header.session_epoch)
        if session is None or header.msg_type != MsgType.OBSERVATION:
            self._statistics.record_drop('wrong_type' if session else 'no_session')
            if session is None:
                self._send_no_session(raw, start.client_id, header, now_ns)
            return None
        self.sessions.record_activity(start.client_id, now_ns, header.episode)
        runs_dry_ns = now_ns + bounded_ns(queue_remaining_s)
        queued = QueuedRequest(session, raw, header, now_ns, runs_dry_ns, queued_ns=now_ns)
        refusal = self._refusal
        if refusal:
            return Arrival(queued, self._refusal_chunk(raw, refusal))
        if over := self._over_quota(raw, start.client_id, now_ns):
            return Arrival(queued, over)
        if may_serve and self._is_quick() and (taken := self._request_queue.take_if_idle(queued)):
            # a drain that began meanwhile waits for what was taken, and may unload the policy then
            if refusal := self._refusal:
                self._request_queue.give_back()
                return Arrival(queued, self._refusal_chunk(raw, refusal))
            if self.description.any_thread:
                self._statistics.record_arrival(now_ns, superseded=False)
                return Arrival(taken, None)
            # the policy was replaced meanwhile by one that the inference thread runs
            self._request_queue.give_back()
        older = self._request_queue.put(queued)
        self._statistics.record_arrival(now_ns, superseded=older is not None)
        if older:
            self._observer.on_dropped(older, 'superseded')
        return None

    def _over_quota(
        self, raw: Raw, client_id: str, now_ns: int, *, has_record: bool = True
    ) -> Chunk | None:
        """Count a request for the quotas of its client; return the reply if they are used up."""
        over = self.quotas.admit(client_id, len(raw), now_ns)
        if over is None:
            return None
        self._statistics.record_drop('quota', has_request_record=has_record)
        chunk = self._error_chunk(raw, Status.QUOTA, over.text)
        return replace(chunk, extensions=(retry_after(over.retry_after_s),))

    def _is_quick(self) -> bool:
        """Return whether the thread that receives a request may serve it."""
        quick = self._statistics.service_s() <= RECEIVING_THREAD_SERVICE_S
        return self.description.any_thread and quick

    def _send_no_session(self, raw: Raw, client_id: str, header: Header, now_ns: int) -> None:
        """Reply NO_SESSION at once, so that the client opens another session."""
        is_request = header.msg_type == MsgType.OBSERVATION
        epoch = header.session_epoch
        if is_request and self._no_session_limiter.allows_reply(client_id, epoch, now_ns):
            text = f'no session of epoch {epoch} is open for {client_id!r}; open a session'
            self._publish_no_session(self._error_chunk(raw, Status.NO_SESSION, text))

    def enqueue_one_shot(
        self, key: str, raw: bytes, now_ns: int, on_reply: Callable[[Chunk], None]
    ) -> Chunk | None:
        """
        Queue a request without a session for `on_reply`; return the error reply if it is refused.

        Executor thread. It is an episode of its own: its policy state is reset after the reply.
        """
        refusal = self._refusal
        if refusal:
            self._statistics.record_drop('draining')
            return self._error_chunk(raw, Status.DRAINING, str(refusal))
        if self.description.state_class == StateClass.EXCLUSIVE and len(self.sessions):
            self._statistics.record_drop('exclusive_in_use')
            text = 'exclusive policy: it keeps state for one robot at a time, and another uses it'
            return self._error_chunk(raw, Status.NO_SESSION, text)
        start, queue_remaining_s = read_queue_remaining(raw)
        if over := self._over_quota(raw, start.client_id, now_ns, has_record=False):
            return over
        session = one_shot_session(key, self.sessions.rules)

        def reply(chunk: Chunk) -> None:
            self.worker.reset(key)
            on_reply(chunk)

        # no robot waits for this reply: clients whose queues run dry sooner have priority
        runs_dry_ns = now_ns + max(ONE_SHOT_DEFERRAL_NS, bounded_ns(queue_remaining_s))
        limit = self.sessions.rules.max_waiting_goals
        queued = QueuedRequest(session, raw, start.header, now_ns, runs_dry_ns, on_reply=reply)
        if not self._request_queue.put_one_shot(queued, limit):
            self._statistics.record_drop('one_shots_full')
            text = (
                f'{limit} predict_chunk calls are waiting, the limit (max_waiting_goals); call '
                'again later, or open a session'
            )
            return self._error_chunk(raw, Status.TOO_LATE, text)
        self._statistics.record_arrival(now_ns, superseded=False)
        return None

    def _refusal_chunk(self, raw: Raw, refusal: SessionRefused) -> Chunk:
        self._statistics.record_drop('draining', has_request_record=True)
        return self._error_chunk(raw, Status.DRAINING, str(refusal))

    def _error_chunk(self, raw: Raw, status: Status, text: str) -> Chunk:
        return error_chunk(
            raw, status, text, slot=self.worker.slot, policy=self.description.fingerprint
        )

    # inference thread

    def replace_worker(self, worker: InferenceWorker) -> InferenceWorker:
        """
        Serve another policy of the same contract from the next batch on, and return the worker of
        the earlier one. Sessions stay open and learn of it with their next chunk; hidden states
        end with their policy. Raises PolicyRequired, and changes nothing.
        """
        self.sessions.replace_policy(worker.description)
        before, self.worker, self.description = self.worker, worker, worker.description
        return before

    # control thread

    def apply_parameters(self, parameters: ServerParameters) -> None:
        """Apply the parameters that may change live; open sessions stay open."""
        self.sessions.apply_live_rules(parameters)
        scheduler = make_scheduler(
            parameters.scheduler,
            size=parameters.max_batch_size,
            window_ns=int(parameters.max_batch_delay_ms * 1e6),
            batch_limit=self.description.batch_limit,
        )
        self._request_queue.set_scheduler(scheduler, self.sessions.__len__)
        self.quotas.apply(parameters.quota_rules, parameters.quota_burst_s)

    def accept_requests(self) -> None:
        """Accept sessions and requests."""
        self._refusal = None

    def stop_accepting(self, refusal: SessionRefused) -> None:
        """Refuse new sessions and requests; queued requests still get a reply."""
        self._refusal = refusal

    def open(self, request: OpenSessionRequest, now_ns: int) -> tuple[Session, Session | None]:
        """Return the session and the one it replaces. Raises SessionRefused."""
        if self._refusal:
            raise self._refusal
        old = self.sessions.current(request.client_id)
        session = self.sessions.open(
            request, now_ns, self.session_limit(self._chunk_duration_s(request), now_ns)
        )
        if session is old:
            return session, None
        self._observer.on_session_opened(session)
        return session, old

    def session_limit(self, chunk_s: float, now_ns: int) -> int:
        """Return how many sessions are admitted if clients execute a chunk for `chunk_s`."""
        rules = self.sessions.rules
        most = rules.max_sessions
        statistics, service_s = self._statistics, self._statistics.service_s()
        if not (rules.admission == 'auto' and service_s > 0 and chunk_s > 0):
            return most
        demand = session_validation.Demand(
            self._request_rate_hz(chunk_s, now_ns), chunk_s, rules.network_round_trip_ms / 1e3
        )
        batch, single_s = statistics.batch_size(), statistics.single_s()
        return min(most, session_validation.max_robots(service_s, demand, batch, single_s))

    def _chunk_duration_s(self, request: OpenSessionRequest | None) -> float:
        """Return how long a client executes a chunk; without a client, at the trained rate."""
        rows = self.description.chunk_size
        if request and request.wants_rtc and self.description.supports_rtc:
            rows = min(rows, request.rtc_execution_horizon or rows)
        fps = request.fps if request else self.description.trained_fps
        return rows / fps if fps > 0 else 0.0

    def _request_rate_hz(self, chunk_s: float, now_ns: int) -> float:
        """Return the request rate of one client: measured, or expected without enough data."""
        arrivals = self._statistics.arrivals(now_ns)
        open_s = self.sessions.total_open_s(now_ns, LOAD_WINDOW_NS)
        if open_s < LOAD_WINDOW_NS / 1e9 or not arrivals:
            return session_validation.expected_rate_hz(chunk_s)
        return arrivals / open_s

    def end_sessions(self, sessions: list[Session], why: str) -> None:
        """Discard the request and the policy state of closed sessions."""
        for session in sessions:
            self._record_dropped(
                self._request_queue.discard_session(session.session_id), 'session_ended'
            )
            self._reset_policy_state(session)
            self._observer.on_session_closed(session, why)

    def start_episode(self, session: Session, episode: int) -> None:
        """Discard the request and the policy state of earlier episodes."""
        late = self._request_queue.discard_episodes_before(session.session_id, episode)
        self._record_dropped(late, 'episode_ended')
        # a late notice of a running episode must not reset its state
        if not self.sessions.has_requested_in(session, episode):
            self._reset_policy_state(session)

    def _record_dropped(self, queued: QueuedRequest | None, reason: str) -> None:
        """Count and report a dropped request, if there is one."""
        if queued:
            self._statistics.record_drop(reason, has_request_record=True)
            self._observer.on_dropped(queued, reason)

    def _reset_policy_state(self, session: Session) -> None:
        self._request_queue.submit_job(lambda: self.worker.reset(session.session_id))

    def close(self, timeout_s: float) -> None:
        """
        Close all sessions, reply DRAINING to queued one-shot requests and close the worker.

        Raises TimeoutError if the policy does not finish in time.
        """
        self.end_sessions(list(self.sessions), 'policy unloaded')

        def unload() -> None:
            for queued in self._request_queue.drop_all():
                self._record_dropped(queued, 'draining')
                refused = self._error_chunk(queued.raw, Status.DRAINING, str(self._refusal))
                queued.deliver(refused)
            self.worker.close()

        self._request_queue.run_job(unload, timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until every request has a reply; False on a timeout."""
        return self._request_queue.wait_until_idle(timeout_s)

    def abort_waiting(self) -> list[tuple[QueuedRequest, Chunk]]:
        """Remove the queued requests and return each with its error reply; for the shutdown."""
        refusal = self._refusal
        if refusal is None:
            return []
        waiting = self._request_queue.drop_all()
        return [(queued, self._refusal_chunk(queued.raw, refusal)) for queued in waiting]

    # any thread

    def is_open(self, queued: QueuedRequest) -> bool:
        """Return whether the reply to this request may still be sent."""
        return self.sessions.is_open(queued.session)

    @property
    def waiting_requests(self) -> int:
        """Number of queued requests."""
        return len(self._request_queue)

    def load_report(self, request: OpenSessionRequest | None = None) -> LoadReport:
        """
        Return the load of the server; `request` is that of the client that receives the report.
        """
        now_ns = time.monotonic_ns()
        load, service_s = self._statistics.load(now_ns), self._statistics.service_s()
        delay_s = session_validation.predicted_delay_s(service_s, load, len(self._request_queue))
        most = self.session_limit(self._chunk_duration_s(request), now_ns)
        return LoadReport(load, delay_s * 1e3, len(self.sessions), most)


def one_shot_session(key: str, rules: ServerParameters) -> Session:
    """Return the session of a request without a session."""
    request = OpenSessionRequest(client_id=key)
    return Session(request, key, SCHEMA_VERSION, rules.default_task, (), rules.pin_task)


def bounded_ns(seconds: float) -> int:
    """Return seconds of a client in ns, at most MAX_QUEUE_S; 0 for NaN and negative values."""
    return int(1e9 * min(seconds, MAX_QUEUE_S)) if seconds > 0 else 0
