"""
What people and episodes decide over the robot: paused or not, an episode or none, a stop lifted.

It keeps these and hands them, with the state of the connection, to the control step as `Orders`;
what follows from them is the table of `authority`. Services are answered with what is true. Any
thread; the tick thread looks each step.
"""

from __future__ import annotations

import threading

from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AuthorityInputs,
    ControlAuthority,
    grant_motion,
    JointMotion,
    OperatingConditions,
    TeardownState,
)
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.transport import EpisodeRequest

STOPPED_TEXT = 'the stop service was called'
LATCHED_TEXT = 'the safety cage has stopped the robot'
# whether something was done, and what is so now
ServiceReply = tuple[bool, str]


class OperatorControl:
    """See the module."""

    def __init__(
        self, controller: Controller, requester: Requester, *, run_on_start: bool
    ) -> None:
        self._controller, self._requester = controller, requester
        self._lock = threading.Lock()
        self._running = run_on_start
        self._resting = False
        self.paused = False
        self.look()

    def look(self) -> OperatingConditions:
        """Return what holds in this step; chunks are asked for where a policy may play."""
        with self._lock:
            orders = self._orders()
            resting = self._who(orders) is not ControlAuthority.POLICY
            if resting is not self._resting:
                self._resting = resting
                self._requester.rest(resting=resting)
            return orders

    @property
    def say(self) -> ControlAuthority:
        """Who has the say, whether or not there is something to play."""
        return self._who(self._orders())

    def _orders(self) -> OperatingConditions:
        return OperatingConditions(self.paused, self._running, self._requester.connection.state)

    def _who(self, orders: OperatingConditions) -> ControlAuthority:
        controller = self._controller
        return grant_motion(
            AuthorityInputs(
                orders,
                controller.latched,
                controller.stopped,
                joints=JointMotion.AT_REST,
                supply=ActionSupply.FRESH,
            )
        ).commander

    # services and actions

    def pause(self) -> ServiceReply:
        """Come to rest; what is left to play stays, and grows old."""
        was_paused, self.paused = self.paused, True
        self.look()
        return True, 'it was paused before' if was_paused else 'paused; the robot comes to rest'

    def resume(self) -> ServiceReply:
        """Lift a pause, and nothing else."""
        if not self.paused:
            return False, f'it is not paused; {self._describe_state()}'
        self.paused = False
        self.look()
        goes_on = self.say is ControlAuthority.POLICY or self._has_pending_teardown()
        return goes_on, f'the pause is lifted; {self._describe_state()}'

    def reset(self, episode: EpisodeRequest) -> ServiceReply:
        """Begin an episode, also after a stop by service, which only this lifts."""
        stopped = self._controller.stopped
        self._controller.clear_stop()
        self._begin(episode)
        lifted = 'the stop by service is lifted; ' if stopped else ''
        if self._controller.latched:
            return (
                False,
                f'{lifted}{LATCHED_TEXT}: call ~/reset_cage, then the next episode begins',
            )
        if self.paused:
            return True, f'{lifted}the next episode begins when ~/resume is called'
        return True, f'{lifted}the next episode begins'

    def reset_cage(self) -> ServiceReply:
        """Let a latched cage judge again."""
        if not self._controller.latched:
            return False, 'the safety cage is not latched'
        self._controller.reset_cage()
        return True, 'the safety cage judges again'

    def refusal(self) -> str:
        """Return why no episode may begin, empty when one may."""
        if self._controller.stopped:
            return f'{STOPPED_TEXT}; look, mend what led to it, then call ~/reset'
        if self._controller.latched:
            return f'{LATCHED_TEXT}; call ~/reset_cage when that is mended'
        return ''

    def begin(self, episode: EpisodeRequest) -> None:
        """
        End the episode that is, and begin this one; a robot that was given up is revived. See
        `refusal`: what was stopped by service stays so.
        """
        self._begin(episode)

    def end(self) -> None:
        """End the episode that is; none begins by itself."""
        self._running = False
        self.look()

    def _begin(self, episode: EpisodeRequest) -> None:
        self._requester.begin(episode)
        self._running = True
        self.look()

    def _has_pending_teardown(self) -> bool:
        controller = self._controller
        given = AuthorityInputs(
            self._orders(),
            controller.latched,
            controller.stopped,
            teardown=controller.teardown,
            joints=JointMotion.AT_REST,
            supply=controller.supply,
        )
        return (
            given.teardown is TeardownState.PENDING
            and grant_motion(given).allowed is AllowedMotion.TEARDOWN
        )

    def _describe_state(self) -> str:
        """Return what the robot does now, and what would let it go on."""
        connection = self._requester.connection
        if self._controller.latched:
            return f'{LATCHED_TEXT} and stays so; call ~/reset_cage when that is mended'
        if self._controller.stopped:
            return f'{STOPPED_TEXT} and that stays so; call ~/reset when what led to it is mended'
        if not self._running:
            return 'no episode runs; send a goal to ~/run_episode or call ~/reset'
        if connection.state is ConnectionState.DEAD:
            does = (
                'the teardown begins now' if self._has_pending_teardown() else 'it does not move'
            )
            return (
                f'the robot is given up ({connection.reason}) and no policy drives it: {does}; '
                'call ~/reset when that is mended'
            )
        return 'it goes on with what is not too old'
