"""
What people and episodes decide over the robot: paused or not, an episode or none, a stop lifted.

It keeps these and hands them, with the state of the connection, to the control step as `Orders`;
what follows from them is the table of `authority`. Services are answered with what is true. Any
thread; the tick thread looks each step.
"""

from __future__ import annotations

import threading

from lerobot_serve.edge.authority import (
    Allowed,
    Commander,
    decide,
    Joints,
    Orders,
    Situation,
    Supply,
    Teardown,
)
from lerobot_serve.edge.controller import Controller
from lerobot_serve.edge.link import Episode
from lerobot_serve.edge.requester import Requester
from lerobot_serve.edge.states import State

STOPPED = 'the stop service was called'
LATCHED = 'the safety cage has stopped the robot'
# whether something was done, and what is so now
Answer = tuple[bool, str]


class Operation:
    """See the module."""

    def __init__(
        self, controller: Controller, requester: Requester, *, runs_by_itself: bool
    ) -> None:
        self._controller, self._requester = controller, requester
        self._lock = threading.Lock()
        self._running = runs_by_itself
        self._resting = False
        self.paused = False
        self.look()

    def look(self) -> Orders:
        """Return what holds in this step; chunks are asked for where a policy may play."""
        with self._lock:
            orders = self._orders()
            resting = self._who(orders) is not Commander.POLICY
            if resting is not self._resting:
                self._resting = resting
                self._requester.rest(resting=resting)
            return orders

    @property
    def say(self) -> Commander:
        """Who has the say, whether or not there is something to play."""
        return self._who(self._orders())

    def _orders(self) -> Orders:
        return Orders(self.paused, self._running, self._requester.connection.state)

    def _who(self, orders: Orders) -> Commander:
        controller = self._controller
        return decide(
            Situation(
                orders,
                controller.latched,
                controller.stopped,
                joints=Joints.AT_REST,
                supply=Supply.FRESH,
            )
        ).commander

    # services and actions

    def pause(self) -> Answer:
        """Come to rest; what is left to play stays, and grows old."""
        was_paused, self.paused = self.paused, True
        self.look()
        return True, 'it was paused before' if was_paused else 'paused; the robot comes to rest'

    def resume(self) -> Answer:
        """Lift a pause, and nothing else."""
        if not self.paused:
            return False, f'it is not paused; {self._what_holds()}'
        self.paused = False
        self.look()
        goes_on = self.say is Commander.POLICY or self._tears_down()
        return goes_on, f'the pause is lifted; {self._what_holds()}'

    def reset(self, episode: Episode) -> Answer:
        """Begin an episode, also after a stop by service, which only this lifts."""
        stopped = self._controller.stopped
        self._controller.lift_stop()
        self._begin(episode)
        lifted = 'the stop by service is lifted; ' if stopped else ''
        if self._controller.latched:
            return False, f'{lifted}{LATCHED}: call ~/reset_cage, then the next episode begins'
        if self.paused:
            return True, f'{lifted}the next episode begins when ~/resume is called'
        return True, f'{lifted}the next episode begins'

    def reset_cage(self) -> Answer:
        """Let a latched cage judge again."""
        if not self._controller.latched:
            return False, 'the safety cage is not latched'
        self._controller.reset_cage()
        return True, 'the safety cage judges again'

    def refusal(self) -> str:
        """Return why no episode may begin, empty when one may."""
        if self._controller.stopped:
            return f'{STOPPED}; look, mend what led to it, then call ~/reset'
        if self._controller.latched:
            return f'{LATCHED}; call ~/reset_cage when that is mended'
        return ''

    def begin(self, episode: Episode) -> None:
        """
        End the episode that is, and begin this one; a robot that was given up is revived. See
        `refusal`: what was stopped by service stays so.
        """
        self._begin(episode)

    def end(self) -> None:
        """End the episode that is; none begins by itself."""
        self._running = False
        self.look()

    def _begin(self, episode: Episode) -> None:
        self._requester.begin(episode)
        self._running = True
        self.look()

    def _tears_down(self) -> bool:
        controller = self._controller
        given = Situation(
            self._orders(),
            controller.latched,
            controller.stopped,
            teardown=controller.teardown,
            joints=Joints.AT_REST,
            supply=controller.supply,
        )
        return given.teardown is Teardown.PENDING and decide(given).allowed is Allowed.TEARDOWN

    def _what_holds(self) -> str:
        """Return what the robot does now, and what would let it go on."""
        connection = self._requester.connection
        if self._controller.latched:
            return f'{LATCHED} and stays so; call ~/reset_cage when that is mended'
        if self._controller.stopped:
            return f'{STOPPED} and that stays so; call ~/reset when what led to it is mended'
        if not self._running:
            return 'no episode runs; send a goal to ~/run_episode or call ~/reset'
        if connection.state is State.DEAD:
            does = 'the teardown begins now' if self._tears_down() else 'it does not move'
            return (
                f'the robot is given up ({connection.reason}) and no policy drives it: {does}; '
                'call ~/reset when that is mended'
            )
        return 'it goes on with what is not too old'
