"""
Who is being served.

Owned by the control thread; the intake thread calls `find` and `heard`, and the inference thread
only reads the frozen Session objects it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
import threading

from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.sessions.session_validation import (
    check_names,
    check_session_request,
    check_version,
    SessionRules,
)
from lerobot_serve.wire.names import is_own_reply_topic, session_name
from lerobot_serve.wire.schema import Refusal, StateClass
from lerobot_serve.wire.session import check_client_id_is_free, SessionRefused, SessionRequest


@dataclass(frozen=True, slots=True)
class Session:
    """One open session."""

    ask: SessionRequest
    session_id: str
    schema_version: int
    task: str
    warnings: tuple[str, ...]
    task_pinned: bool = False


@dataclass(slots=True)
class ClientActivity:
    """
    When a client came and was last heard, the newest episode it asked for, and since when nobody
    listens on its reply topic.
    """

    opened_ns: int
    heard_ns: int
    deaf_since_ns: int | None
    episode: int = -1


class SessionTable:
    """The open sessions, at most one for each client_id."""

    def __init__(self, served: PolicyDescription, rules: SessionRules) -> None:
        self._served = served
        self.rules = rules
        self._sessions: dict[str, Session] = {}
        self._presence: dict[str, ClientActivity] = {}
        # `find` and `heard` are the intake thread's, everything else is the control thread's
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def open(self, ask: SessionRequest, now_ns: int, limit: int) -> Session:
        """
        Return the session, which takes the place of the client's older one. Raises Refused.

        The same ask twice is answered twice with the same session; `limit` bounds new clients.
        """
        version = check_version(ask)
        check_names(ask)
        known = self._sessions.get(ask.client_id)
        if known and known.ask == ask:
            self._presence[ask.client_id].heard_ns = now_ns
            self._presence[ask.client_id].deaf_since_ns = now_ns
            return known
        if known:
            silent_ns = now_ns - self._presence[ask.client_id].heard_ns
            check_client_id_is_free(known.ask, ask, silent_ns, self.rules.grace_ns)
        else:
            self._check_room(limit)
            self._check_process(ask)
        self._check_reply_topic(ask, now_ns)
        warnings = check_session_request(ask, self._served, self.rules)
        session = Session(
            ask,
            session_name(ask.client_id, ask.session_epoch),
            version,
            ask.task or self.rules.default_task,
            warnings,
            self.rules.pin_task,
        )
        with self._lock:
            self._sessions[ask.client_id] = session
            self._presence[ask.client_id] = ClientActivity(now_ns, now_ns, now_ns)
        return session

    def current(self, client_id: str) -> Session | None:
        """Return the open session of this client, whatever its epoch."""
        return self._sessions.get(client_id)

    def find(self, client_id: str, session_epoch: int) -> Session | None:
        """Return the open session of this client and epoch."""
        session = self._sessions.get(client_id)
        return session if session and session.ask.session_epoch == session_epoch else None

    def is_open(self, session: Session) -> bool:
        """Return whether this very session is still the client's; any thread."""
        return self._sessions.get(session.ask.client_id) is session

    def heard(self, client_id: str, now_ns: int, episode: int) -> None:
        """Note that the client is alive, and in which episode."""
        with self._lock:
            presence = self._presence.get(client_id)
            if presence:
                presence.heard_ns = now_ns
                presence.episode = max(presence.episode, episode)

    def has_requested_in(self, session: Session, episode: int) -> bool:
        """Return whether the client has already asked for a chunk of this episode or a later."""
        return self._presence[session.ask.client_id].episode >= episode

    def open_s(self, now_ns: int, window_ns: int) -> float:
        """Return how long the sessions together were open within the window that ends now."""
        since_ns = (presence.opened_ns for presence in tuple(self._presence.values()))
        return sum(min(window_ns, now_ns - opened_ns) for opened_ns in since_ns) / 1e9

    def close(self, client_id: str, session_epoch: int) -> Session | None:
        """Return the session that was ended, None when there was no such session."""
        with self._lock:
            if not self.find(client_id, session_epoch):
                return None
            del self._presence[client_id]
            return self._sessions.pop(client_id)

    def sweep(
        self, now_ns: int, has_subscriber: Callable[[str], bool]
    ) -> list[tuple[Session, str]]:
        """
        Close and return, each with the reason, the sessions whose client is gone.

        Gone is who neither listens on its reply topic nor was heard for the grace time, and who
        sent nothing for the idle time.
        """
        ended = []
        for name, session in list(self._sessions.items()):
            presence = self._presence[name]
            if has_subscriber(session.ask.reply_topic):
                presence.deaf_since_ns = None
            elif presence.deaf_since_ns is None:
                presence.deaf_since_ns = now_ns
            reason = self._why_gone(presence, now_ns)
            if reason:
                self.close(name, session.ask.session_epoch)
                ended.append((session, reason))
        return ended

    def change_rules(self, **changes: int) -> None:
        """Change what may change live; sessions that are open stay open."""
        self.rules = replace(self.rules, **changes)

    def _why_gone(self, presence: ClientActivity, now_ns: int) -> str:
        silent_ns = now_ns - presence.heard_ns
        if silent_ns > self.rules.idle_ns:
            return 'session_idle'
        deaf_since_ns = presence.deaf_since_ns
        deaf = deaf_since_ns is not None and now_ns - deaf_since_ns > self.rules.grace_ns
        return 'client_gone' if deaf and silent_ns > self.rules.grace_ns else ''

    def _check_room(self, limit: int) -> None:
        if self._served.state_class == StateClass.EXCLUSIVE and self._sessions:
            (holder,) = self._sessions
            raise SessionRefused(
                Refusal.EXCLUSIVE_IN_USE,
                f'{self._served.policy_type} keeps state that only one robot can use, and '
                f'{holder!r} uses it; wait until that robot is done, or ask another server',
            )
        if len(self._sessions) >= limit:
            raise SessionRefused(
                Refusal.CAPACITY,
                f'{len(self._sessions)} sessions are open and {limit} can be served; ask another '
                f'server, or raise max_sessions ({self.rules.max_sessions}) or change admission',
            )

    def _check_process(self, ask: SessionRequest) -> None:
        limit = self.rules.process_sessions
        if sum(session.ask.instance == ask.instance for session in self) >= limit:
            raise SessionRefused(
                Refusal.CAPACITY,
                f'the process of {ask.client_id!r} (instance {ask.instance}) holds {limit} '
                'sessions, which is the bound of one process; close one, or raise '
                'sessions_per_process',
            )

    def _check_reply_topic(self, ask: SessionRequest, now_ns: int) -> None:
        """A topic of one client alone takes no other client's chunks, while it is used."""
        if not is_own_reply_topic(ask.reply_topic):
            return
        for session in self:
            name = session.ask.client_id
            if name == ask.client_id or session.ask.reply_topic != ask.reply_topic:
                continue
            if now_ns - self._presence[name].heard_ns < self.rules.grace_ns:
                raise SessionRefused(
                    Refusal.BAD_NAME,
                    f'reply_topic {ask.reply_topic!r} is that of {name!r}; listen on a topic of '
                    'your own',
                )
