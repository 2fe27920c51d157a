"""
One loaded policy and the robots it serves: what the node asks of them, without ROS.

Each method says whose thread it is. Built when the node is configured, gone when it is cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import time

from lerobot_serve.server.inference.request_queue import QueuedRequest, RequestQueue
from lerobot_serve.server.inference.schedulers import Scheduler
from lerobot_serve.server.inference.worker import error_chunk, InferenceWorker
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import LOAD_WINDOW_NS, ServerStatistics
from lerobot_serve.server.sessions import admission
from lerobot_serve.server.sessions.no_session_limiter import NoSessionLimiter
from lerobot_serve.server.sessions.session_table import Session, SessionTable
from lerobot_serve.server.sessions.session_validation import SessionRules
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.observation import read_queue_remaining
from lerobot_serve.wire.schema import MsgType, Refusal, SCHEMA_VERSION, StateClass, Status
from lerobot_serve.wire.session import SessionRefused, SessionRequest

MAX_QUEUE_S = 60.0
ONE_SHOT_PATIENCE_NS = 1_000_000_000
NO_OBSERVER = RequestObserver()


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How busy the server is, for a client that has a choice."""

    load: float
    predicted_delay_ms: float
    active_sessions: int
    max_sessions: int


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How many sessions are admitted: max_sessions, or fewer when `measured`."""

    measured: bool
    network_s: float


class ServerCore:
    """See the module."""

    def __init__(
        self,
        worker: InferenceWorker,
        mailbox: RequestQueue,
        statistics: ServerStatistics,
        rules: SessionRules,
        admitted: AdmissionSettings,
        watch: RequestObserver = NO_OBSERVER,
    ) -> None:
        """`watch` is told of sessions and of requests that the policy never answers."""
        self.worker, self.served = worker, worker.served
        self.sessions = SessionTable(self.served, rules)
        self.admission = admitted
        self._request_queue, self._statistics, self._watch = mailbox, statistics, watch
        self._no_session_limiter = NoSessionLimiter()
        # takes the answers of robots without a session, which have no reply topic; replaced by
        # the node before the first request
        self.send_no_session: Callable[[Chunk], None] = lambda _: None
        self._refusal: SessionRefused | None = SessionRefused(
            Refusal.NOT_READY, 'the server is configured but not active; activate it'
        )

    # intake thread

    def deposit(self, raw: bytes, now_ns: int) -> tuple[QueuedRequest, Chunk] | None:
        """Put a request into the line; return the answer when it is refused at once."""
        try:
            start, queue_remaining_s = read_queue_remaining(raw)
        except Malformed as error:
            self._statistics.drop(error.reason)
            return None
        header = start.header
        session = self.sessions.find(start.client_id, header.session_epoch)
        if session is None or header.msg_type != MsgType.OBSERVATION:
            self._statistics.drop('wrong_type' if session else 'no_session')
            if session is None:
                self._answer_stranger(raw, start.client_id, header, now_ns)
            return None
        self.sessions.heard(start.client_id, now_ns, header.episode)
        mail = QueuedRequest(session, raw, header, now_ns, now_ns + bounded_ns(queue_remaining_s))
        refusal = self._refusal
        if refusal:
            return mail, self._refused(raw, refusal)
        older = self._request_queue.put(mail)
        self._statistics.arrived(now_ns, superseded=older is not None)
        if older:
            self._watch.lost(older, 'superseded')
        return None

    def _answer_stranger(self, raw: bytes, client_id: str, header: Header, now_ns: int) -> None:
        """Tell a robot at once that its session is not known, so that it opens another one."""
        is_request = header.msg_type == MsgType.OBSERVATION
        epoch = header.session_epoch
        if is_request and self._no_session_limiter.allows_reply(client_id, epoch, now_ns):
            text = f'no session of epoch {epoch} is open for {client_id!r}; open one'
            self.send_no_session(self._failure(raw, Status.NO_SESSION, text))

    def enqueue_one_shot(
        self, key: str, raw: bytes, now_ns: int, use: Callable[[Chunk], None]
    ) -> Chunk | None:
        """
        Put a request without a session into the line, for `use`; return why it is refused.

        Executor thread. It is an episode of its own: whatever the policy remembers of it goes.
        """
        refusal = self._refusal
        if refusal:
            self._statistics.drop('draining')
            return self._failure(raw, Status.DRAINING, str(refusal))
        if self.served.state_class == StateClass.EXCLUSIVE and len(self.sessions):
            self._statistics.drop('exclusive_in_use')
            text = 'the policy keeps state that only one robot can use, and one uses it'
            return self._failure(raw, Status.NO_SESSION, text)
        start, queue_remaining_s = read_queue_remaining(raw)
        session = one_shot_session(key, self.sessions.rules)

        def answer(chunk: Chunk) -> None:
            self.worker.reset(key)
            use(chunk)

        # no robot stands still for want of it: those that run dry sooner go first
        runs_dry_ns = now_ns + max(ONE_SHOT_PATIENCE_NS, bounded_ns(queue_remaining_s))
        limit = self.sessions.rules.one_shots
        mail = QueuedRequest(session, raw, start.header, now_ns, runs_dry_ns, use=answer)
        if not self._request_queue.put_one_shot(mail, limit):
            self._statistics.drop('one_shots_full')
            text = (
                f'{limit} calls of predict_chunk wait already, which is the bound '
                '(one_shots_waiting); call again later, or open a session'
            )
            return self._failure(raw, Status.TOO_LATE, text)
        self._statistics.arrived(now_ns, superseded=False)
        return None

    def _refused(self, raw: bytes, refusal: SessionRefused) -> Chunk:
        self._statistics.drop('draining', has_request_record=True)
        return self._failure(raw, Status.DRAINING, str(refusal))

    def _failure(self, raw: bytes, status: Status, text: str) -> Chunk:
        return error_chunk(
            raw, status, text, slot=self.worker.slot, policy=self.served.fingerprint
        )

    # control thread

    def change(
        self, rules: SessionRules, admitted: AdmissionSettings, scheduler: Scheduler
    ) -> None:
        """Bring in what may change live: bounds, times, admission and the order of service."""
        self.sessions.change_rules(
            max_sessions=rules.max_sessions,
            grace_ns=rules.grace_ns,
            idle_ns=rules.idle_ns,
            process_sessions=rules.process_sessions,
            one_shots=rules.one_shots,
        )
        self.admission = admitted
        self._request_queue.schedule(scheduler, self.sessions.__len__)

    def begin(self) -> None:
        """Take sessions and requests."""
        self._refusal = None

    def refuse(self, refusal: SessionRefused) -> None:
        """Take no more sessions and requests; what waits is still answered."""
        self._refusal = refusal

    def open(self, ask: SessionRequest, now_ns: int) -> tuple[Session, Session | None]:
        """Return the session and the one that it takes the place of. Raises Refused."""
        if self._refusal:
            raise self._refusal
        old = self.sessions.current(ask.client_id)
        session = self.sessions.open(ask, now_ns, self.limit(self._chunk_s(ask), now_ns))
        if session is old:
            return session, None
        self._watch.opened(session)
        return session, old

    def limit(self, chunk_s: float, now_ns: int) -> int:
        """Return how many sessions are admitted of robots that play a chunk for `chunk_s`."""
        most = self.sessions.rules.max_sessions
        service_s = self._statistics.service_s()
        if not (self.admission.measured and service_s > 0 and chunk_s > 0):
            return most
        demand = admission.Demand(
            self._rate_hz(chunk_s, now_ns), chunk_s, self.admission.network_s
        )
        return min(most, admission.max_robots(service_s, demand))

    def _chunk_s(self, ask: SessionRequest | None) -> float:
        """Return how long a robot plays a chunk; of none in particular, at the trained rate."""
        guided = ask and ask.wants_rtc and self.served.supports_rtc
        rows = self.served.chunk_size
        if guided and ask.rtc_execution_horizon:
            rows = min(rows, ask.rtc_execution_horizon)
        fps = ask.fps if ask else self.served.trained_fps
        return rows / fps if fps > 0 else 0.0

    def _rate_hz(self, chunk_s: float, now_ns: int) -> float:
        """Return how often a robot asks: measured once robots were here for long enough."""
        arrivals = self._statistics.arrivals(now_ns)
        open_s = self.sessions.open_s(now_ns, LOAD_WINDOW_NS)
        if open_s < LOAD_WINDOW_NS / 1e9 or not arrivals:
            return admission.expected_rate_hz(chunk_s)
        return arrivals / open_s

    def end(self, sessions: list[Session], why: str) -> None:
        """Free what was kept for sessions that are closed."""
        for session in sessions:
            self._drop(self._request_queue.forget(session.session_id), 'session_ended')
            self._forget(session)
            self._watch.closed(session, why)

    def begin_episode(self, session: Session, episode: int) -> None:
        """Nothing of an earlier episode reaches the one that begins."""
        late = self._request_queue.forget_episodes_before(session.session_id, episode)
        self._drop(late, 'episode_ended')
        # word of an episode may come late, and must not end what it begins
        if not self.sessions.has_requested_in(session, episode):
            self._forget(session)

    def _drop(self, mail: QueuedRequest | None, reason: str) -> None:
        """Count and tell what was waiting, if anything."""
        if mail:
            self._statistics.drop(reason, has_request_record=True)
            self._watch.lost(mail, reason)

    def _forget(self, session: Session) -> None:
        self._request_queue.post(lambda: self.worker.reset(session.session_id))

    def close(self, timeout_s: float) -> None:
        """
        Close all sessions, answer what still waits for a policy, let the policy go.

        Raises TimeoutError when the policy is still at work by then.
        """
        self.end(list(self.sessions), 'the policy is let go')

        def let_go() -> None:
            for mail in self._request_queue.clear():
                self._drop(mail, 'draining')
                if mail.use:
                    mail.use(self._failure(mail.raw, Status.DRAINING, str(self._refusal)))
            self.worker.close()

        self._request_queue.call(let_go, timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is answered; False when that took too long."""
        return self._request_queue.wait_until_idle(timeout_s)

    def give_up(self) -> list[tuple[QueuedRequest, Chunk]]:
        """Return what still waits with the answer that it gets instead; for the very end."""
        refusal = self._refusal
        waiting = self._request_queue.clear() if refusal else []
        return [(mail, self._refused(mail.raw, refusal)) for mail in waiting]

    # any thread

    def is_open(self, mail: QueuedRequest) -> bool:
        """Return whether the answer to this mail may still be sent."""
        return self.sessions.is_open(mail.session)

    @property
    def waiting(self) -> int:
        """How many requests wait for the policy."""
        return len(self._request_queue)

    def report(self, ask: SessionRequest | None = None) -> LoadReport:
        """Return how busy the server is; `ask` is who wants to know."""
        now_ns = time.monotonic_ns()
        load, service_s = self._statistics.load(now_ns), self._statistics.service_s()
        delay_s = admission.predicted_delay_s(service_s, load, len(self._request_queue))
        most = self.limit(self._chunk_s(ask), now_ns)
        return LoadReport(load, delay_s * 1e3, len(self.sessions), most)


def one_shot_session(key: str, rules: SessionRules) -> Session:
    """Return what stands for a session where there is none."""
    ask = SessionRequest(key, 0, 0, '', (), (), (), 0.0)
    return Session(ask, key, SCHEMA_VERSION, rules.default_task, (), rules.pin_task)


def bounded_ns(seconds: float) -> int:
    """What a client says may be anything; NaN and negative count as: it stands still already."""
    return int(1e9 * min(seconds, MAX_QUEUE_S)) if seconds > 0 else 0
