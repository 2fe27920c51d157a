# SPDX-License-Identifier: Apache-2.0
"""
Operator control: pause, resume, reset, reset_cage, and the start and end of episodes.

It holds these conditions and passes them, with the connection state, to the control step as
`OperatingConditions`; the table in `authority` evaluates them. Service replies state the resulting
state. Any thread; the tick thread updates it each step.
"""

from __future__ import annotations

import threading

from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AuthorityInputs,
    ControlAuthority,
    grant_motion,
    Intervention,
    JointMotion,
    OperatingConditions,
    TeardownState,
)
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.flag_file import FlagFile
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.settings import EpisodeRequest
from lerobot_serve.edge.takeover.takeover import Takeover
from lerobot_serve.wire.execution_report import Halt

STOPPED_TEXT = 'Stop service called'
LATCHED_TEXT = 'Safety cage latched'
STOPPED_REMEDY = f'{STOPPED_TEXT}. Fix the cause, then call ~/reset'
LATCHED_REMEDY = f'{LATCHED_TEXT}. Fix the cause, then call ~/reset_cage'
# success, and the resulting state as text
ServiceReply = tuple[bool, str]


class OperatorControl:
    """Holds pause and episode state; idles the requester unless the policy has authority."""

    def __init__(
        self,
        controller: Controller,
        requester: Requester,
        takeover: Takeover,
        *,
        run_on_start: bool,
        pause_file: FlagFile | None = None,
    ) -> None:
        self._controller, self._requester = controller, requester
        self.takeover = takeover
        # of the last control step
        self.intervention = Intervention.NONE
        self._lock = threading.Lock()
        self._running = run_on_start
        self._is_idle = False
        self._pause_file = pause_file
        # of an operator before this process: nothing but their resume ends it
        self.paused = pause_file is not None and pause_file.exists()
        self.update()

    def update(self, intervention: Intervention | None = None) -> OperatingConditions:
        """
        Return the conditions of this step; request chunks only where the policy may command, or
        could if no person had taken over. `intervention` is that of the step; None: as before.
        """
        with self._lock:
            if intervention is not None:
                self.intervention = intervention
            conditions = self._conditions()
            self._requester.set_halted(halted=self._controller.halt is not Halt.NONE)
            without_person = conditions._replace(intervention=Intervention.NONE)
            idle = self._authority(without_person) is not ControlAuthority.POLICY
            if idle is not self._is_idle:
                self._is_idle = idle
                self._requester.set_idle(idle=idle)
            return conditions

    @property
    def episode_id(self) -> str:
        """The episode that runs; empty between episodes."""
        return self._requester.episode_id if self._running else ''

    @property
    def authority(self) -> ControlAuthority:
        """The control authority, assuming that fresh actions are available."""
        return self._authority(self._conditions())

    def _conditions(self) -> OperatingConditions:
        state = self._requester.connection.state
        return OperatingConditions(self.paused, self._running, state, self.intervention)

    def _authority(self, conditions: OperatingConditions) -> ControlAuthority:
        controller = self._controller
        return grant_motion(
            AuthorityInputs(
                conditions,
                controller.latched,
                controller.stopped,
                joints=JointMotion.AT_REST,
                supply=ActionSupply.FRESH,
            )
        ).authority

    # services and actions

    def pause(self) -> ServiceReply:
        """Slow down to rest; the queue stays, and its actions age."""
        was_paused, self.paused = self.paused, True
        # first of all the robot slows down
        self.update()
        fault = self._pause_file.create() if self._pause_file else ''
        done = 'Already paused' if was_paused else 'Paused. The robot slows down to rest'
        warning = f'A restart of the edge controller ends it: {fault}' if fault else ''
        return True, '. '.join(filter(None, (done, warning)))

    def resume(self) -> ServiceReply:
        """End a pause, and nothing else."""
        if not self.paused:
            return False, f'Not paused. {self._describe_state(self._conditions())}'
        fault = self._pause_file.remove() if self._pause_file else ''
        self.paused = False
        conditions = self.update()
        again = 'After a restart of the edge controller it is paused again'
        warning = f'{again}: {fault}' if fault else ''
        has_authority = self._authority(conditions) is ControlAuthority.POLICY
        continues = has_authority or self._has_pending_teardown(conditions)
        said = ('Resumed', self._describe_state(conditions), warning)
        return continues, '. '.join(filter(None, said))

    def take_over(self) -> ServiceReply:
        """Let a person command instead of the policy, from the next control step on."""
        if refusal := self.takeover.refusal():
            return False, f'Not taken over. {refusal}'
        done = 'Already taken over' if self.takeover.is_taken_over else 'Taken over'
        warning = self.takeover.begin()
        return True, '. '.join(filter(None, (done, self._describe_takeover(), warning)))

    def hand_back(self) -> ServiceReply:
        """
        Let the policy command again: with actions that it plans from now on, none of before.
        """
        if not self.takeover.is_taken_over:
            return False, f'Not taken over. {self._describe_state(self._conditions())}'
        # before the policy has authority again: no action planned before is executed
        self._requester.replan()
        warning = self.takeover.end()
        # the control step applies it with its next update
        conditions = self._conditions()._replace(intervention=Intervention.NONE)
        if self._authority(conditions) is ControlAuthority.POLICY:
            continues = 'The policy plans from the present state'
        elif self.paused:
            continues = 'Paused: the policy continues after ~/resume'
        else:
            continues = self._describe_state(conditions)
        return True, '. '.join(filter(None, ('Handed back', continues, warning)))

    def _describe_takeover(self) -> str:
        if self._controller.latched:
            return LATCHED_REMEDY
        if self._controller.stopped:
            return STOPPED_REMEDY
        topic = self.takeover.device.description.topic if self.takeover.device else ''
        return (
            f'The robot follows {topic} while its commands arrive and the deadman is held; '
            'otherwise the fallback ladder runs. The policy waits for ~/hand_back'
        )

    def reset(self, episode: EpisodeRequest) -> ServiceReply:
        """Start an episode; also clears a stop by service."""
        stopped = self._controller.stopped
        self._controller.clear_stop()
        self._begin(episode)
        cleared = 'Stop cleared. ' if stopped else ''
        if self._controller.latched:
            return (
                False,
                f'{cleared}{LATCHED_TEXT}. Call ~/reset_cage, then the next episode starts',
            )
        if self.paused:
            return True, f'{cleared}The next episode starts after ~/resume'
        return True, f'{cleared}The next episode starts'

    def reset_cage(self) -> ServiceReply:
        """Clear the latch of the cage."""
        if not self._controller.latched:
            return False, 'Cage is not latched'
        self._controller.reset_cage()
        return True, 'Cage latch cleared'

    def start_refusal(self) -> str:
        """Return why no episode may start; empty if one may."""
        if self._controller.stopped:
            return STOPPED_REMEDY
        if self._controller.latched:
            return LATCHED_REMEDY
        return ''

    def begin_episode(self, episode: EpisodeRequest) -> None:
        """
        End the current episode and start this one; leaves DEAD. A stop by service stays, see
        `start_refusal`.
        """
        self._begin(episode)

    def end_episode(self) -> None:
        """End the current episode; no other one starts automatically."""
        self._running = False
        self.update()

    def _begin(self, episode: EpisodeRequest) -> None:
        self._requester.begin_episode(episode)
        self._running = True
        self.update()

    def _has_pending_teardown(self, conditions: OperatingConditions) -> bool:
        controller = self._controller
        given = AuthorityInputs(
            conditions,
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

    def _describe_state(self, conditions: OperatingConditions) -> str:
        """Return what the robot does under these conditions, and how to continue."""
        if self._controller.latched:
            return LATCHED_REMEDY
        if self._controller.stopped:
            return STOPPED_REMEDY
        if not self._running:
            return 'No episode runs. Send a goal to ~/run_episode or call ~/reset'
        if conditions.state is ConnectionState.DEAD:
            reason = self._requester.connection.reason
            does = 'Teardown started' if self._has_pending_teardown(conditions) else 'No motion'
            return (
                f'Connection dead ({reason}). No policy controls the robot. {does}. Fix the '
                'cause, then call ~/reset'
            )
        return 'Stale actions are discarded'
