# SPDX-License-Identifier: Apache-2.0
"""
Transport over the clients of policy servers: opens sessions and sends requests. The request
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
import contextlib
from functools import partial
from typing import NamedTuple

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.records import (
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.robot import unit_check
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.unit_check import UnitFit
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.telemetry.log_throttle import Logs

OPEN_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
DISCOVERY_TIMEOUT_S = 3.0


class _Session(NamedTuple):
    """The session requested last, and the client of its server."""

    client: ServerClient
    request: OpenSessionRequest


class PolicyServerTransport:
    """
    The Transport of the node. `session_request` builds a session request from its epoch;
    `rate_warnings` compares a chunk size with the rate of the robot.
    """

    def __init__(
        self,
        clients: Mapping[str, ServerClient],
        robot: RobotDescription,
        *,
        session_request: Callable[[int], OpenSessionRequest],
        rate_warnings: Callable[[int], Iterable[str]],
        logs: Logs,
    ) -> None:
        self._clients, self._robot = clients, robot
        self._session_request, self._rate_warnings = session_request, rate_warnings
        self._logs = logs
        self._session: _Session | None = None

    def is_available(self, server: str) -> bool:
        """Return whether the services of this server are available."""
        return self._clients[server].is_available()

    def open_session(self, server: str, epoch: int) -> OpenSessionResponse:
        """Open a session. Raises SessionRefused or ServerUnreachable."""
        client = self._clients[server]
        request = client.session_request_for(self._session_request(epoch))
        reply = client.open(request, OPEN_TIMEOUT_S)
        self._session = _Session(client, request)
        self._check_units(server, reply)
        if not client.wait_until_matched(DISCOVERY_TIMEOUT_S):
            self._logs.info(
                f'{server}: topics not discovered within {DISCOVERY_TIMEOUT_S:g} s; '
                'first requests may be lost'
            )
        for text in (*reply.warnings, *self._rate_warnings(reply.chunk_size)):
            self._logs.info(text)
        self._logs.info(f'session {reply.session_id} opened with {server}, policy {reply.policy}')
        return reply

    def _check_units(self, server: str, reply: OpenSessionResponse) -> None:
        """
        Compare the policy's action range with the limits. Close the session and raise
        SessionRefused for a range far beyond them in an undeclared unit.
        """
        try:
            policy = action_range.find(reply.extensions)
        except ValueError as error:
            self._logs.info(f'{server}: {error}; units not compared')
            return
        checked = unit_check.check_units(self._robot, policy)
        if checked.fit is UnitFit.GROSS:
            self.close_session()
            raise SessionRefused(Refusal.WRONG_POLICY, f'{reply.policy}: {checked.text}')
        if checked.text:
            self._logs.warning(f'{reply.policy}: {checked.text}')

    def close_session(self) -> None:
        """Close the session; an unreachable server closes it by its own timeout."""
        session, self._session = self._session, None
        if session:
            with contextlib.suppress(ServerUnreachable):
                session.client.close(session.request, CLOSE_TIMEOUT_S)

    def reset_episode(self, epoch: int, episode: int, episode_id: str) -> None:
        """Notify the server of a new episode without waiting for the reply."""
        session = self._current()
        request = ResetEpisodeRequest(session.request.client_id, epoch, episode, episode_id)
        session.client.announce(request, partial(self._log_refused_reset, episode_id))

    def _log_refused_reset(self, episode_id: str, text: str) -> None:
        self._logs.info(f'server rejected the reset for episode {episode_id!r}: {text}')

    def send(self, raw: Outgoing) -> None:
        """Publish a request."""
        self._current().client.send(raw)

    def probe(self, on_reply: Callable[[], None]) -> None:
        """Call the status service of the current server; the executor receives the reply."""
        self._current().client.probe(on_reply)

    def _current(self) -> _Session:
        """Return the open session. Raises RuntimeError without one."""
        if self._session is None:
            raise RuntimeError('no session is open')
        return self._session
