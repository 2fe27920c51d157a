# SPDX-License-Identifier: Apache-2.0
"""
Robots that do one episode after the other, and a judge that reports how each ended. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.schema import Flag
from lerobot_serve.contract.services.session import SessionRefused
from support.night.clock import NightClock
from support.night.router_process import NightRouter
from support.night.world import World
from support.router.dispatch_rig import ask_of, request_bytes

EPISODE_S, BETWEEN_S, REPORT_S, RETRY_S = 40.0, 5.0, 2.0, 3.0
REQUESTS, COMMANDS_A_REQUEST, REPORTS = 2, 90, 40


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """An episode, the policies that drove it, and its outcome as in EpisodeOutcome."""

    client_id: str
    episode_id: str
    policies: tuple[str, ...]
    outcome: int


class NightRobot:
    """One robot. `silent` keeps it from beginning an episode."""

    def __init__(
        self,
        number: int,
        clock: NightClock,
        router: NightRouter,
        world: World,
        on_ended: Callable[[EndedEpisode], None],
        on_chunk: Callable[[str, str, bool], None],
    ) -> None:
        self.client_id, self.node = f'robot_{number}', f'/robot_{number}/edge_controller'
        self._clock, self._router, self._world = clock, router, world
        self._on_ended, self._on_chunk = on_ended, on_chunk
        self.is_silent = False
        self.slot = self.episode_id = ''
        self._epoch, self._seq, self._episode, self._actions = 0, 0, 0, 0
        self._policies: list[str] = []
        self._has_session: object = None
        clock.after(1.0 + number * 4.0, self._begin)

    def _begin(self) -> None:
        if self.is_silent:
            self._clock.after(BETWEEN_S, self._begin)
            return
        self._episode += 1
        self.episode_id, self._policies = f'{self.client_id}-{self._episode}', []
        self._act(REQUESTS)

    def _act(self, left: int) -> None:
        if not left:
            self._end()
            return
        is_replied = self._ask()
        if not is_replied:
            # the router has closed the session of a robot that was silent: open another one
            self._has_session = None
        duration_s = EPISODE_S / REQUESTS * self._world.chance.uniform(0.8, 1.2)
        # without a reply the robot asks again, and its episode waits
        self._clock.after(
            duration_s if is_replied else RETRY_S, lambda: self._act(left - is_replied)
        )

    def _ask(self) -> bool:
        """Send a request; return whether actions came."""
        router = self._router
        if router.core is None or not self._open():
            return False
        self._seq += 1
        self._actions += COMMANDS_A_REQUEST
        raw = request_bytes(
            self.client_id,
            self._seq,
            self.episode_id,
            epoch=self._epoch,
            number=self._episode,
            executed=ExecutionReport(actions=self._actions),
            flags=Flag.NONE if self._policies else Flag.EPISODE_START,
        )
        router.request(raw)
        return self._receive()

    def _receive(self) -> bool:
        replies, has_actions = self._router.links.replies, False
        while replies:
            session, raw = replies.popleft()
            assert session.request.client_id == self.client_id
            chunk = wire_chunk.decode(raw)
            if chunk.episode_id != self.episode_id or not chunk.policy or chunk.status != 0:
                continue
            has_actions, self.slot = True, chunk.slot
            is_flagged = bool(chunk.header.flags & Flag.POLICY_CHANGED)
            self._on_chunk(self.episode_id, chunk.policy, is_flagged)
            if chunk.policy not in self._policies:
                self._policies.append(chunk.policy)
        return has_actions

    def _open(self) -> bool:
        core = self._router.core
        if self._has_session is core:
            return True
        self._epoch += 1
        try:
            self._router.open(ask_of(self.client_id, self._epoch))
        except SessionRefused:
            return False
        self._has_session = core
        return True

    def _end(self) -> None:
        outcome = self._world.outcome(self._policies[-1])
        ended = EndedEpisode(self.client_id, self.episode_id, tuple(self._policies), outcome)
        self._clock.after(REPORT_S, lambda: self._report(ended, REPORTS))
        self.episode_id = self.slot = ''
        self._clock.after(BETWEEN_S, self._begin)

    def _report(self, ended: EndedEpisode, left: int) -> None:
        """Report an outcome, again while the router is away, as an edge does."""
        core = self._router.core
        if core is None and left:
            self._clock.after(RETRY_S, lambda: self._report(ended, left - 1))
            return
        if core:
            core.record_outcome(ended.episode_id, ended.outcome)
        self._on_ended(ended)
