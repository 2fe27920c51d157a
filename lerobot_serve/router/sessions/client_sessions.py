# SPDX-License-Identifier: Apache-2.0
"""
The open sessions of clients and the replicas that hold them.

The thread `control` adds and removes sessions; the data path reads them, under RoutingTable.lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.services.session import check_client_id_is_free


@dataclass(slots=True)
class ClientSession:
    """
    One session of one client.

    places       slot -> replicas that hold the session, preferred first; replaced as a whole
    episode_id   episode of the newest request; the fields below hold for this episode
    slot         slot of the newest request
    server       replica of the newest request
    policy       policy of the last chunk with actions
    failed_slot  slot whose last reply had no actions; empty otherwise
    """

    request: OpenSessionRequest
    places: dict[str, tuple[str, ...]]
    last_heard_ns: int
    unsubscribed_since_ns: int | None = None
    episode_id: str = ''
    slot: str = ''
    server: str = ''
    policy: str = ''
    failed_slot: str = ''
    # flags for the next chunk with actions
    flags: int = 0
    executed: ExecutionReport | None = None
    # whether a quota has refused a request since the last execution report that was counted
    is_held_back: bool = False
    # server -> time of the last request or call of the session
    last_used_ns: dict[str, int] = field(default_factory=dict)
    # slot -> the policy that refused this client
    refused: dict[str, str] = field(default_factory=dict)
    # policies that the client has agreed on, or was notified of; empty: not known
    known_policies: set[str] = field(default_factory=set)

    def begin(self, episode_id: str) -> None:
        """Begin another episode and reset its state."""
        self.episode_id, self.flags = episode_id, 0
        self.slot = self.server = self.policy = self.failed_slot = ''

    def record_reply(self, policy: str) -> bool:
        """Record the policy of a chunk; return whether it is another one for the client."""
        is_unknown = bool(self.known_policies) and policy not in self.known_policies
        is_other = is_unknown or self.policy not in ('', policy)
        if is_unknown:
            self.known_policies.add(policy)
        self.policy = policy
        return is_other

    def resume(self, old: ClientSession) -> None:
        """Take over the episode of the previous session of the same client instance."""
        if old.request.instance == self.request.instance:
            self.begin(old.episode_id)
            self.slot, self.server, self.policy = old.slot, old.server, old.policy
            self.failed_slot, self.flags, self.executed = old.failed_slot, old.flags, old.executed


class ClientSessions:
    """At most one session for each client_id."""

    def __init__(self, *, grace_s: float, idle_s: float) -> None:
        self.grace_ns, self.idle_ns = int(grace_s * 1e9), int(idle_s * 1e9)
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(tuple(self._sessions.values()))

    def current(self, client_id: str) -> ClientSession | None:
        """Return the session of a client, of any epoch."""
        return self._sessions.get(client_id)

    def find(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Return the session of a client and epoch."""
        session = self._sessions.get(client_id)
        return session if session and session.request.session_epoch == session_epoch else None

    def check_client_id(self, session_request: OpenSessionRequest, now_ns: int) -> None:
        """Raise SessionRefused if another client uses the client_id."""
        known = self._sessions.get(session_request.client_id)
        if known:
            silent_ns = now_ns - known.last_heard_ns
            check_client_id_is_free(known.request, session_request, silent_ns, self.grace_ns)

    def add(self, session: ClientSession) -> ClientSession | None:
        """Add a session; return the previous one with the same client_id, if any."""
        old = self._sessions.get(session.request.client_id)
        self._sessions[session.request.client_id] = session
        return old

    def close(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Remove and return a session; None without such a session."""
        return self._sessions.pop(client_id) if self.find(client_id, session_epoch) else None

    def expired(
        self, now_ns: int, has_subscriber: Callable[[str], bool]
    ) -> list[tuple[ClientSession, str]]:
        """
        Return expired sessions with their reasons.

        A session expires after the grace time without subscriber and requests, or after the idle
        time without requests.
        """
        reasons = [
            (session, self._expiry_reason(session, now_ns, has_subscriber)) for session in self
        ]
        return [(session, why) for session, why in reasons if why]

    def _expiry_reason(
        self, session: ClientSession, now_ns: int, has_subscriber: Callable[[str], bool]
    ) -> str:
        if has_subscriber(session.request.reply_topic):
            session.unsubscribed_since_ns = None
        elif session.unsubscribed_since_ns is None:
            session.unsubscribed_since_ns = now_ns
        silent_ns = now_ns - session.last_heard_ns
        if silent_ns > self.idle_ns:
            return 'session_idle'
        is_unsubscribed = (
            session.unsubscribed_since_ns is not None
            and now_ns - session.unsubscribed_since_ns > self.grace_ns
        )
        return 'client_gone' if is_unsubscribed and silent_ns > self.grace_ns else ''
