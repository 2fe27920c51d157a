# SPDX-License-Identifier: Apache-2.0
"""
Operator control: pause, resume, reset, reset_cage, and the start and end of episodes.

It holds these conditions and passes them, with the connection state, to the control step as
`OperatingConditions`; the table in `authority` evaluates them. Service replies state the resulting
state. Any thread; the tick thread updates it each step.
"""

from __future__ import annotations

import threading

from lerobot_serve.contract.data_path.execution_report import Halt
from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    ControlAuthority,
    describe_pause,
    grant_motion,
    Intervention,
    JointMotion,
    OperatingConditions,
    TeardownState,
)
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.takeover import Takeover

STOPPED_TEXT = 'Stop service called'
LATCHED_TEXT = 'Safety cage latched'
STOPPED_REMEDY = f'{STOPPED_TEXT}. Fix the cause, then call ~/reset'
LATCHED_REMEDY = f'{LATCHED_TEXT}. Fix the cause, then call ~/reset_cage'
# of a robot that may move again; with fresh actions, the ladder runs only after a person
CONTINUING = ControlAuthority.POLICY, ControlAuthority.PERSON, ControlAuthority.LADDER
# success, and the resulting state as text
ServiceReply = tuple[bool, str]


class OperatorControl:
    """
    Holds whether an episode runs; idles the requester unless the policy has authority. `decisions`
    has what holds until a person lifts it, also across restarts.
    """

    def __init__(
        self,
        controller: Controller,
        requester: Requester,
        takeover: Takeover,
        decisions: RobotDecisions,
        *,
        run_on_start: bool,
    ) -> None:
        self._controller, self._requester = controller, requester
        self.takeover, self.decisions = takeover, decisions
        # of the last control step
        self.intervention = Intervention.NONE
        self._lock = threading.Lock()
        self._running = run_on_start
        self._is_idle = False
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
    def paused(self) -> bool:
        """Whether an operator has paused the robot."""
        return self.decisions.holds(Decision.PAUSED)

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
        given = self._controller.authority_inputs(conditions)
        return grant_motion(
            given._replace(interlock=False, joints=JointMotion.AT_REST, supply=ActionSupply.FRESH)
        ).authority

    # services and actions

    def pause(self, reason: str = '') -> ServiceReply:
        """
        Slow down to rest, whoever commands, until `resume`; the queue stays, and its actions age.
        """
        done = 'Already paused' if self.paused else 'Paused'
        last = self._controller.grant.allowed
        # first of all the robot slows down
        self.decisions.decide(Decision.PAUSED, reason)
        given = self._controller.authority_inputs(self.update())
        warning = self.decisions.settle(Decision.PAUSED)
        return True, _sentences(done, describe_pause(given, last), warning)

    def resume(self) -> ServiceReply:
        """End a pause, and nothing else."""
        if not self.paused:
            return False, f'Not paused. {self._describe_state(self._conditions())}'
        self.decisions.lift(Decision.PAUSED)
        warning = self.decisions.settle(Decision.PAUSED)
        conditions = self.update()
        continues = self._authority(conditions) in CONTINUING
        continues |= self._has_pending_teardown(conditions)
        return continues, _sentences('Resumed', self._describe_state(conditions), warning)

    def take_over(self) -> ServiceReply:
        """
        Let a person command instead of the policy, from the next control step on; a paused robot
        rests until `resume`.
        """
        if refusal := self.takeover.refusal():
            return False, f'Not taken over. {refusal}'
        done = 'Already taken over' if self.takeover.is_taken_over else 'Taken over'
        warning = self.takeover.begin()
        return True, _sentences(done, self._describe_state(self._conditions()), warning)

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
        has_policy = self._authority(conditions) is ControlAuthority.POLICY
        plans = 'The policy plans from the present state'
        continues = plans if has_policy else self._describe_state(conditions)
        return True, _sentences('Handed back', continues, warning)

    def reset(self, episode: EpisodeRequest) -> ServiceReply:
        """Start an episode; also clears a stop by service."""
        warning, was_stopped = '', self._controller.stopped
        if was_stopped:
            # on the disk first: a stop that comes after it is written again
            self.decisions.lift(Decision.STOPPED)
            warning = self.decisions.settle(Decision.STOPPED)
            self._controller.clear_stop()
        self._begin(episode)
        cleared = 'Stop cleared' if was_stopped else ''
        if self._controller.stopped:
            return False, _sentences(cleared, STOPPED_REMEDY, warning)
        latched = self._controller.latched
        needs = ('~/reset_cage', latched), ('~/resume', self.paused)
        after = ' and '.join(service for service, is_needed in needs if is_needed)
        starts = f'The next episode starts after {after}' if after else 'The next episode starts'
        return not latched, _sentences(cleared, LATCHED_TEXT * latched, starts, warning)

    def reset_cage(self) -> ServiceReply:
        """Clear the latch of the cage."""
        if not self._controller.latched:
            return False, 'Cage is not latched'
        # as in `reset`
        self.decisions.lift(Decision.LATCHED)
        warning = self.decisions.settle(Decision.LATCHED)
        self._controller.reset_cage()
        return True, _sentences('Cage latch cleared', warning)

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
        given = self._controller.authority_inputs(conditions)
        given = given._replace(interlock=False, joints=JointMotion.AT_REST)
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
        if conditions.paused:
            then = f'. Then: {self._describe_takeover()}' if self.takeover.is_taken_over else ''
            return f'Paused until ~/resume{then}'
        if self.takeover.is_taken_over:
            return self._describe_takeover()
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

    def _describe_takeover(self) -> str:
        topic = self.takeover.device.description.topic if self.takeover.device else 'no device'
        otherwise = 'the fallback ladder runs' if self._running else 'it holds still'
        return (
            f'The robot follows {topic} while its commands arrive and the deadman is held; '
            f'otherwise {otherwise}. The policy waits for ~/hand_back'
        )


def _sentences(*each: str) -> str:
    return '. '.join(filter(None, each))
