"""
What a router looks at again and again, and tells: who is there, robots that are gone, states.

The executor's thread; what takes time is handed to the control thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from lerobot_serve.router import reports
from lerobot_serve.router.jobs import Jobs
from lerobot_serve.router.messages import shadow_summary
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.recorder import Recorder
from lerobot_serve.router.robots import Robot
from lerobot_serve.router.serving import seen, Serving
from lerobot_serve.router.shadow_feed import ShadowFeed


@dataclass(frozen=True, slots=True)
class Here:
    """
    The node, as far as its rooms know of it: its full name, monotonic nanoseconds, the present as
    messages have it, how operators are warned, and how they hear of what is well again.
    """

    name: str
    clock: Callable[[], int]
    stamp: Callable[[], Any]
    warn: Callable[[str], None]
    inform: Callable[[str], None]


class Presence(Protocol):
    """Tells whether anybody offers a server's services, as ros.replica_clients does."""

    def is_there(self, server: str) -> bool: ...


class Topics(Protocol):
    """What operators see, as ros.router_topics has it."""

    def tell(self, message: Any) -> None: ...


class Lookout:
    """See the module. `close_session` ends one robot's; the control thread calls it."""

    def __init__(
        self,
        serving: Serving,
        presence: Presence,
        topics: Topics,
        jobs: Jobs,
        close_session: Callable[[str, int], Robot | None],
        here: Here,
        *,
        feed: ShadowFeed | None,
        recorder: Recorder | None,
    ) -> None:
        self._serving, self._presence, self._topics = serving, presence, topics
        self._jobs, self._close_session, self._here = jobs, close_session, here
        self._feed, self._recorder = feed, recorder
        self._verdict = ''
        # slot -> policy as written down last; None until the router begins
        self._noted: dict[str, str] | None = None
        self._is_looking_after = False

    def on_status(self, server: str, status: Any) -> None:
        """A replica tells of itself."""
        text = self._serving.learn(server, seen(status))
        if text:
            self._here.warn(text)
        if self._noted not in (None, self._policies()):
            self.note_policies()

    def note_policies(self) -> None:
        """Write down which policy each slot has; again whenever that changes."""
        self._noted = self._policies()
        if self._recorder:
            self._recorder.policies(self._serving.slots)

    def _policies(self) -> dict[str, str]:
        return {name: slot.policy for name, slot in self._serving.slots.items()}

    def look(self, parameters: RouterParameters, *, is_open: bool) -> None:
        """Several times a second: who is there, and what that comes to."""
        for server in self._serving.replicas:
            self._serving.note_there(server, is_there=self._presence.is_there(server))
        if not is_open:
            return
        if self._serving.look_at_canary():
            self._topics.tell(self._serving.canary.report(self._here.stamp()))
        before, self._verdict = self._verdict, self._serving.verdict
        if self._verdict != before:
            self._tell_verdict(before, self._state(parameters))

    def _tell_verdict(self, before: str, state: Any) -> None:
        if self._recorder:
            self._recorder.state('slots', before, self._verdict, state.text)
        say = self._here.inform if self._verdict == 'healthy' else self._here.warn
        say(f'{self._verdict}: {state.text}' if state.text else self._verdict)
        self._topics.tell(state)

    def look_slowly(
        self, has_listener: Callable[[str], bool], parameters: RouterParameters
    ) -> None:
        """Once a second: robots that are gone, sessions that are missing, states."""
        self._serving.look()
        now_ns = self._here.clock()
        for robot, reason in self._serving.dispatcher.robots.gone(now_ns, has_listener):
            self._jobs.put(partial(self._let_go, robot, reason))
        if not self._is_looking_after:
            self._is_looking_after = True
            self._jobs.put(self._look_after)
        state, stamp = self._state(parameters), self._here.stamp()
        self._topics.tell(state)
        self._topics.tell(reports.diagnostics(state, name=self._here.name))
        self._topics.tell(self._serving.canary.report(stamp))
        if self._feed:
            self._topics.tell(self._shadow_summary(self._feed, stamp))

    def _shadow_summary(self, feed: ShadowFeed, stamp: Any) -> Any:
        summary, parameters = feed.summary(), self._serving.parameters
        least = parameters.shadow_minimum_hours, parameters.shadow_minimum_episodes
        lacking = self._serving.qualification.lacking(summary.shadow_policy, *least)
        return shadow_summary(summary, lacking, feed.drops(), stamp)

    def _state(self, parameters: RouterParameters) -> Any:
        return reports.router_state(
            self._serving,
            stamp=self._here.stamp(),
            server=self._here.name,
            split_percent=parameters.split_percent,
            drops=self._serving.drops.counts(),
        )

    # control thread

    def _let_go(self, robot: Robot, reason: str) -> None:
        """A robot is gone; unless it has closed its session meanwhile, or another look has."""
        if self._close_session(robot.ask.client_id, robot.ask.session_epoch):
            self._serving.drops.add(reason)
            self._here.warn(f'closed the session of {robot.ask.client_id!r}: {reason}')

    def _look_after(self) -> None:
        try:
            self._serving.control.look_at_replicas()
            self._serving.control.look_after_robots()
        finally:
            self._is_looking_after = False
