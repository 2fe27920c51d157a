# SPDX-License-Identifier: Apache-2.0
"""
Table of the open sessions: open, find, expire and close.

The control thread owns it; the intake thread calls `find` and `record_activity`, and the inference
thread only reads the frozen Session objects it receives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
import threading

from lerobot_serve.contract.names import is_own_reply_topic, session_name
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal, StateClass
from lerobot_serve.contract.services.session import check_client_id_is_free, SessionRefused
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import (
    check_names,
    check_session_request,
    check_version,
    is_required_policy,
)


@dataclass(slots=True)
class AnsweringPolicy:
    """
    The policy that a client knows: that of its agreement, then that of its last chunk. Empty for a
    request without a session. The thread that runs the policy.
    """

    fingerprint: str = ''

    def is_other(self, fingerprint: str) -> bool:
        """Record the policy of a chunk; return whether the client knows another one."""
        known, self.fingerprint = self.fingerprint, self.fingerprint and fingerprint
        return known != self.fingerprint


@dataclass(frozen=True, slots=True)
class Session:
    """One open session; `answers` is the policy that its client knows."""

    request: OpenSessionRequest
    session_id: str
    schema_version: int
    task: str
    warnings: tuple[str, ...]
    is_task_pinned: bool = False
    answers: AnsweringPolicy = field(default_factory=AnsweringPolicy, compare=False)


@dataclass(slots=True)
class ClientActivity:
    """
    When a client opened its session and sent its last request, its newest episode, and since when
    its reply topic has no subscriber.
    """

    opened_ns: int
    last_request_ns: int
    no_listener_since_ns: int | None
    episode: int = -1


class PolicyRequired(Exception):
    """Open sessions require the policy that would be replaced; `clients` names them."""

    def __init__(self, clients: tuple[str, ...]) -> None:
        super().__init__(', '.join(clients))
        self.clients = clients


class SessionTable:
    """The open sessions, at most one for each client_id."""

    def __init__(self, description: PolicyDescription, rules: ServerParameters) -> None:
        self._description = description
        self.rules = rules
        self._sessions: dict[str, Session] = {}
        self._activity: dict[str, ClientActivity] = {}
        # the intake thread calls `find` and `record_activity`, the inference thread
        # `replace_policy`, the control thread the rest
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def open(self, request: OpenSessionRequest, now_ns: int, limit: int) -> Session:
        """
        Open a session, which replaces the client's older one. Raises SessionRefused.

        An equal request returns the same session; `limit` applies to new clients.
        """
        version = check_version(request)
        check_names(request)
        known = self._sessions.get(request.client_id)
        if known and known.request == request:
            self._activity[request.client_id].last_request_ns = now_ns
            self._activity[request.client_id].no_listener_since_ns = now_ns
            return known
        if known:
            silent_ns = now_ns - self._activity[request.client_id].last_request_ns
            check_client_id_is_free(known.request, request, silent_ns, self.rules.session_grace_ns)
        else:
            self._check_capacity(limit)
        if known is None or known.request.instance != request.instance:
            # also for a client_id that a process takes over from a silent one
            self._check_process(request)
        self._check_reply_topic(request, now_ns)
        with self._lock:
            # under the lock: a policy that replaces this one fits every open session
            warnings = check_session_request(request, self._description, self.rules)
            session = Session(
                request,
                session_name(request.client_id, request.session_epoch),
                version,
                request.task or self.rules.default_task,
                warnings,
                self.rules.pin_task,
                AnsweringPolicy(self._description.fingerprint),
            )
            self._sessions[request.client_id] = session
            self._activity[request.client_id] = ClientActivity(now_ns, now_ns, now_ns)
        return session

    def replace_policy(self, description: PolicyDescription) -> None:
        """
        Check later sessions against this policy, of the same contract; open ones stay open. Raises
        PolicyRequired for sessions that require another one, and changes nothing.
        """
        with self._lock:
            self.check_required(description)
            self._description = description

    def check_required(self, description: PolicyDescription) -> None:
        """Raise PolicyRequired for sessions that require another policy."""
        required = tuple(
            name
            for name, session in self._sessions.items()
            if not is_required_policy(session.request, description)
        )
        if required:
            raise PolicyRequired(required)

    def current(self, client_id: str) -> Session | None:
        """Return the open session of this client, of any epoch."""
        return self._sessions.get(client_id)

    def find(self, client_id: str, session_epoch: int) -> Session | None:
        """Return the open session of this client and epoch."""
        session = self._sessions.get(client_id)
        return session if session and session.request.session_epoch == session_epoch else None

    def is_open(self, session: Session) -> bool:
        """Return whether this session is still open; any thread."""
        return self._sessions.get(session.request.client_id) is session

    def record_activity(self, client_id: str, now_ns: int, episode: int) -> None:
        """Record a request of the client and its episode."""
        with self._lock:
            activity = self._activity.get(client_id)
            if activity:
                activity.last_request_ns = now_ns
                activity.episode = max(activity.episode, episode)

    def has_requested_in(self, session: Session, episode: int) -> bool:
        """Return whether the client has sent a request of this or a later episode."""
        return self._activity[session.request.client_id].episode >= episode

    def total_open_s(self, now_ns: int, window_ns: int) -> float:
        """Return the summed open time of all sessions within the window that ends now."""
        since_ns = (activity.opened_ns for activity in tuple(self._activity.values()))
        return sum(min(window_ns, now_ns - opened_ns) for opened_ns in since_ns) / 1e9

    def close(self, client_id: str, session_epoch: int) -> Session | None:
        """Close and return a session; None if there is none."""
        with self._lock:
            if not self.find(client_id, session_epoch):
                return None
            del self._activity[client_id]
            return self._sessions.pop(client_id)

    def close_expired(
        self, now_ns: int, has_subscriber: Callable[[str], bool]
    ) -> list[tuple[Session, str]]:
        """
        Close the sessions of lost clients; return each with the reason.

        A client is lost without a subscriber on its reply topic and without requests for the grace
        time, or without requests for the idle time.
        """
        ended = []
        for name, session in list(self._sessions.items()):
            activity = self._activity[name]
            if has_subscriber(session.request.reply_topic):
                activity.no_listener_since_ns = None
            elif activity.no_listener_since_ns is None:
                activity.no_listener_since_ns = now_ns
            reason = self._expiry_reason(activity, now_ns)
            if reason:
                self.close(name, session.request.session_epoch)
                ended.append((session, reason))
        return ended

    def apply_live_rules(self, rules: ServerParameters) -> None:
        """Apply the rules that may change live; open sessions stay open, with their tasks."""
        self.rules = replace(
            rules,
            default_task=self.rules.default_task,
            pin_task=self.rules.pin_task,
            require_trained_fps=self.rules.require_trained_fps,
        )

    def _expiry_reason(self, activity: ClientActivity, now_ns: int) -> str:
        silent_ns = now_ns - activity.last_request_ns
        if silent_ns > self.rules.session_idle_ns:
            return 'session_idle'
        no_listener_since_ns = activity.no_listener_since_ns
        has_no_listener = (
            no_listener_since_ns is not None
            and now_ns - no_listener_since_ns > self.rules.session_grace_ns
        )
        return 'client_gone' if has_no_listener and silent_ns > self.rules.session_grace_ns else ''

    def _check_capacity(self, limit: int) -> None:
        if self._description.state_class == StateClass.EXCLUSIVE and self._sessions:
            (holder,) = self._sessions
            raise SessionRefused(
                Refusal.EXCLUSIVE_IN_USE,
                f'{self._description.policy_type} is exclusive (state for one robot) and in use '
                f'by {holder!r}; wait, or use another server',
            )
        if len(self._sessions) >= limit:
            raise SessionRefused(
                Refusal.CAPACITY,
                f'{len(self._sessions)} sessions are open and {limit} can be served; use another '
                f'server, raise max_sessions ({self.rules.max_sessions}) or change admission',
            )

    def _check_process(self, request: OpenSessionRequest) -> None:
        limit = self.rules.max_sessions_per_process
        if sum(session.request.instance == request.instance for session in self) >= limit:
            raise SessionRefused(
                Refusal.CAPACITY,
                f'the process of {request.client_id!r} (instance {request.instance}) has {limit} '
                'sessions, the limit of one process; close one, or raise max_sessions_per_process',
            )

    def _check_reply_topic(self, request: OpenSessionRequest, now_ns: int) -> None:
        """Raise SessionRefused for the reply topic of another active client."""
        if not is_own_reply_topic(request.reply_topic):
            return
        for session in self:
            name = session.request.client_id
            if name == request.client_id or session.request.reply_topic != request.reply_topic:
                continue
            if now_ns - self._activity[name].last_request_ns < self.rules.session_grace_ns:
                raise SessionRefused(
                    Refusal.BAD_NAME,
                    f'reply_topic {request.reply_topic!r} is used by {name!r}; use a topic of '
                    'your own',
                )
