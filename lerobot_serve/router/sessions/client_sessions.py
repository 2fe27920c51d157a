# SPDX-License-Identifier: Apache-2.0
"""
Open sessions of clients, and the replicas of each slot that hold them.

The thread `control` opens and closes; the dispatcher reads under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.session import check_client_id_is_free, SessionRequest


@dataclass(slots=True)
class ClientSession:
    """
    One session of one client.

    places      slot -> replicas that hold its session, preferred first; replaced as a whole
    episode_id  of its newest request; the fields below hold for this episode
    slot        of its newest request
    server      the replica of its newest request
    policy      of the last chunk with actions
    failed_slot the slot whose last reply had no actions; empty when it had
    """

    ask: SessionRequest
    places: dict[str, tuple[str, ...]]
    heard_ns: int
    deaf_since_ns: int | None = None
    episode_id: str = ''
    slot: str = ''
    server: str = ''
    policy: str = ''
    failed_slot: str = ''
    # flags for its next chunk with actions
    flags: int = 0
    executed: ExecutionReport | None = None
    # server -> when its session was last used there
    last_used_ns: dict[str, int] = field(default_factory=dict)
    # slot -> the policy that refused this client
    refused: dict[str, str] = field(default_factory=dict)

    def begin(self, episode_id: str) -> None:
        """Begin another episode and reset its state."""
        self.episode_id, self.flags = episode_id, 0
        self.slot = self.server = self.policy = self.failed_slot = ''

    def resume(self, old: ClientSession) -> None:
        """Continue from the previous session of the same client; its episode goes on."""
        if old.ask.instance == self.ask.instance:
            self.begin(old.episode_id)
            self.slot, self.server, self.policy = old.slot, old.server, old.policy
            self.failed_slot, self.flags, self.executed = old.failed_slot, old.flags, old.executed


class ClientSessions:
    """At most one session for each client_id."""

    def __init__(self, *, grace_ns: int, idle_ns: int) -> None:
        self.grace_ns, self.idle_ns = grace_ns, idle_ns
        self._robots: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._robots)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(tuple(self._robots.values()))

    def current(self, client_id: str) -> ClientSession | None:
        """Return the session of a client, of any epoch."""
        return self._robots.get(client_id)

    def find(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Return the session of a client and epoch."""
        robot = self._robots.get(client_id)
        return robot if robot and robot.ask.session_epoch == session_epoch else None

    def check_client_id(self, ask: SessionRequest, now_ns: int) -> None:
        """Raise SessionRefused when another client uses that client_id."""
        known = self._robots.get(ask.client_id)
        if known:
            silent_ns = now_ns - known.heard_ns
            check_client_id_is_free(known.ask, ask, silent_ns, self.grace_ns)

    def add(self, robot: ClientSession) -> ClientSession | None:
        """Add a session; return the previous one of that client_id."""
        old = self._robots.get(robot.ask.client_id)
        self._robots[robot.ask.client_id] = robot
        return old

    def close(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Remove and return a session, None when there is no such session."""
        return self._robots.pop(client_id) if self.find(client_id, session_epoch) else None

    def gone(
        self, now_ns: int, has_subscriber: Callable[[str], bool]
    ) -> list[tuple[ClientSession, str]]:
        """
        Return expired sessions, each with the reason.

        A session expires without a subscriber and requests for the grace time, or without
        requests for the idle time.
        """
        whys = [(robot, self._why_gone(robot, now_ns, has_subscriber)) for robot in self]
        return [(robot, why) for robot, why in whys if why]

    def _why_gone(
        self, robot: ClientSession, now_ns: int, has_subscriber: Callable[[str], bool]
    ) -> str:
        if has_subscriber(robot.ask.reply_topic):
            robot.deaf_since_ns = None
        elif robot.deaf_since_ns is None:
            robot.deaf_since_ns = now_ns
        silent_ns = now_ns - robot.heard_ns
        if silent_ns > self.idle_ns:
            return 'session_idle'
        is_deaf = robot.deaf_since_ns is not None and now_ns - robot.deaf_since_ns > self.grace_ns
        return 'client_gone' if is_deaf and silent_ns > self.grace_ns else ''
