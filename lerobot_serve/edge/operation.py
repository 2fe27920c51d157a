"""
Who has the say over the robot: the policy, an operator who pauses, nobody between two episodes, or
the teardown of a robot that was given up.

One table says what each of them means for the tick and for the requests. Any thread; the tick
thread looks each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto, Enum
import threading

from lerobot_serve.edge.controller import Controller
from lerobot_serve.edge.link import Episode
from lerobot_serve.edge.requester import Requester
from lerobot_serve.edge.rungs import Rung
from lerobot_serve.edge.states import State


class Say(Enum):
    """Who has it; the later ones come before the earlier."""

    POLICY = auto()
    # no episode runs, and none is to run by itself
    NOBODY = auto()
    OPERATOR = auto()
    TEARDOWN = auto()


@dataclass(frozen=True, slots=True)
class Diversions:
    """What the robot does instead of playing."""

    between_episodes: tuple[Rung, ...]
    paused: tuple[Rung, ...]
    teardown: tuple[Rung, ...]


class Operation:
    """See the module."""

    def __init__(
        self,
        controller: Controller,
        requester: Requester,
        diversions: Diversions,
        *,
        runs_by_itself: bool,
    ) -> None:
        self._controller, self._requester = controller, requester
        self._rungs = {
            Say.NOBODY: (diversions.between_episodes, 'no_episode'),
            Say.OPERATOR: (diversions.paused, 'paused'),
            Say.TEARDOWN: (diversions.teardown, 'given_up'),
        }
        self._lock = threading.Lock()
        self._runs = runs_by_itself
        self.paused = False
        self.say = Say.POLICY
        self.look()

    def look(self) -> None:
        """Follow what has changed; the tick thread calls it each step."""
        with self._lock:
            say = self._whose()
            if say is self.say:
                return
            self.say = say
            self._requester.rest(resting=say is not Say.POLICY)
            if say is Say.POLICY:
                self._controller.release()
            else:
                self._controller.divert(*self._rungs[say])

    def _whose(self) -> Say:
        if self._requester.connection.state == State.DEAD:
            return Say.TEARDOWN
        if self.paused:
            return Say.OPERATOR
        return Say.POLICY if self._runs else Say.NOBODY

    def pause(self) -> None:
        """Come to rest; what is left to play stays, and grows old."""
        self.paused = True
        self.look()

    def resume(self) -> None:
        """Go on with what is not too old."""
        self.paused = False
        self.look()

    def begin(self, episode: Episode) -> None:
        """End the episode that is, and begin this one; a robot that was given up begins anew."""
        self._requester.begin(episode)
        self._runs = True
        self.look()
        if self.say is Say.POLICY:
            # also from a stop that the ladder came to by itself
            self._controller.release()

    def end(self) -> None:
        """End the episode that is; none begins by itself."""
        self._runs = False
        self.look()
