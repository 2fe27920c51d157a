# SPDX-License-Identifier: Apache-2.0
"""A command is confirmed by a state, or its result is unknown; it carries its operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.tools.operator_states import canary_of, changed, robot_of, router_of, slot_of

from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.commands import rollout_rule
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.operations import RECORD_S, run_robot_verb, run_rule, set_split
from lerobot_serve.tools.operate.outcome import NotReached, ResultUnknown
from lerobot_serve.tools.operate.rule import RobotVerb, Verb

BEFORE = router_of(
    '/r',
    'healthy',
    split_percent=75,
    slots=(slot_of('a', 'v1@1', share_percent=75), slot_of('b', 'v2@2', share_percent=25)),
    canary=canary_of(
        CanaryPhase.PAUSED, 'v2@2', 'v1@1', 0, 3, 25, 'paused: by an operator: kim@lab'
    ),
)


def at(phase: CanaryPhase, text: str) -> RouterView:
    return changed(BEFORE, canary=changed(BEFORE.canary, state=phase, text=text))


@dataclass
class FakeClient:
    """A router and a robot; `states` are what they publish after a command, in order."""

    states: list[Any] = field(default_factory=list)
    reply: tuple[bool, str] | Exception = (True, 'done')
    operator: str = 'kim@lab'
    commands: list[tuple[str, str, dict]] = field(default_factory=list)

    def control_slot(self, router: str, command: str, *, reason: str, **values: Any) -> Any:
        self.commands.append((command, reason, values))
        return self._reply()

    def trigger(self, node: str, service: str) -> Any:
        self.commands.append((service, '', {}))
        return self._reply()

    def _reply(self) -> tuple[bool, str]:
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def wait_for_router(
        self, name: str, accepts: Callable[[Any], bool], timeout_s: float | None = None
    ) -> Any:
        while self.states:
            if accepts(self.states[0]):
                return self.states[0]
            self.states.pop(0)
        return None

    def wait_for_robot(
        self, node: str, accepts: Callable[[Any], bool], timeout_s: float | None = None
    ) -> Any:
        return self.wait_for_router(node, accepts)

    def last_router(self, name: str) -> None:
        return None


def resume(client: FakeClient) -> Any:
    rule = rollout_rule(Verb.RESUME, BEFORE.canary)
    return run_rule(client, BEFORE, rule, verb='rollout resume', reason='lunch is over')


def test_a_result_has_one_state():
    """The reply is of the moment of the command; the state continues while it is waited for."""
    client = FakeClient([at(CanaryPhase.UNDECIDED, 'undecided: 8 of 10')], (True, 'running: by'))
    result = resume(client)
    assert result.text == 'undecided: 8 of 10'
    assert result.changes == ['rollout: paused -> undecided']
    ((command, reason, _),) = client.commands
    assert (command, reason) == ('CANARY_RESUME', 'kim@lab: lunch is over')


def test_without_a_state_that_shows_it_the_result_is_unknown():
    with pytest.raises(ResultUnknown, match=r'/r accepted it \(done\)'):
        resume(FakeClient([BEFORE]))
    with pytest.raises(ResultUnknown, match='/r did not reply'):
        resume(FakeClient([BEFORE], ResultUnknown('no reply')))


def test_a_refusal_changes_nothing_unless_another_operator_was_faster():
    with pytest.raises(UserError, match=r'refuses: not paused\. Nothing was changed'):
        resume(FakeClient([BEFORE], (False, 'not paused')))
    client = FakeClient([at(CanaryPhase.RUNNING, 'running')], (False, 'not paused'))
    assert resume(client).text == 'done already: not paused'


RUNNING = changed(BEFORE.canary, state=CanaryPhase.RUNNING)


def promote(client: FakeClient) -> Any:
    before = changed(BEFORE, canary=RUNNING)
    return run_rule(client, before, rollout_rule(Verb.PROMOTE, RUNNING), verb='rollout promote')


def test_a_promotion_carries_the_step_that_the_operator_saw():
    at_next = changed(BEFORE, canary=changed(RUNNING, step=1, text='running: step 2'))
    client = FakeClient([at_next])
    promote(client)
    assert client.commands[0][2]['plan'] == ['0']
    # another operator was faster: the step is as wanted
    assert promote(FakeClient([at_next], (False, 'at 1'))).text == 'done already: at 1'
    # the plan has begun again, for another reason than a promotion
    again = changed(BEFORE, canary=changed(RUNNING, text='running: counts reset'))
    with pytest.raises(UserError, match=r'refuses: at 0\. Nothing was changed'):
        promote(FakeClient([again], (False, 'at 0')))
    resume(client := FakeClient([at(CanaryPhase.RUNNING, 'running')]))
    assert client.commands[0][2]['plan'] == []


@pytest.mark.parametrize(
    ('reply', 'error'),
    [
        ((True, '90 %'), None),
        ((False, 'slot b is barred'), UserError),
        (ResultUnknown('no reply'), None),
    ],
)
def test_a_split_is_confirmed_by_the_state(reply, error):
    off = changed(BEFORE, canary=canary_of())
    client = FakeClient([changed(off, split_percent=90)] if error is None else [], reply)
    if error:
        with pytest.raises(error, match='slot b is barred'):
            set_split(client, off, 90, 'service')
        return
    result = set_split(client, off, 90, 'service')
    assert result.text == '90 % of new episodes to slot a, 10 % to slot b'
    assert result.changes == ['split to slot a: 75 % -> 90 %']
    assert client.commands[0] == ('SET_SPLIT', 'kim@lab: service', {'split_percent': 90})


ROBOT = robot_of('/left/edge_controller', 'left', 'STREAMING', server='/r')
OK, NO, LOST = (True, 'Paused'), (False, 'busy'), ResultUnknown('no reply')


@pytest.mark.parametrize('verb', RobotVerb)
@pytest.mark.parametrize('is_shown', [True, False])
@pytest.mark.parametrize('reply', [OK, NO, LOST], ids=['ok', 'no', 'lost'])
def test_a_verb_of_a_robot_is_done_when_a_state_or_for_a_reset_the_reply_shows_it(
    verb, is_shown, reply
):
    paused = verb is RobotVerb.PAUSE
    robot = changed(ROBOT, paused=not paused)
    states = [changed(ROBOT, paused=paused)] if is_shown else [robot]
    client = FakeClient(states, reply)
    has_state = verb in (RobotVerb.PAUSE, RobotVerb.RESUME)
    if (has_state and is_shown) or (not has_state and reply is OK):
        assert run_robot_verb(client, robot, verb).node == ROBOT.node
    elif reply is NO:
        with pytest.raises(UserError, match='left: busy'):
            run_robot_verb(client, robot, verb)
    else:
        with pytest.raises(ResultUnknown, match='no state shows it'):
            run_robot_verb(client, robot, verb)


def test_the_router_of_a_robot_records_who_and_why():
    client = FakeClient([changed(ROBOT, paused=True)], OK)
    result = run_robot_verb(client, ROBOT, RobotVerb.PAUSE, 'cable')
    # its server may be none
    limit = {'limit_s': RECORD_S}
    assert client.commands[-1] == ('NOTE', 'kim@lab: pause left: cable', limit)
    assert result.text == 'Paused'


def test_a_reason_that_nobody_records_is_said():
    client = FakeClient([changed(ROBOT, paused=True)], OK)
    client.control_slot = lambda *_, **__: (_ for _ in ()).throw(NotReached('not there'))
    text = run_robot_verb(client, ROBOT, RobotVerb.PAUSE, 'cable').text
    assert text == 'Paused. The reason is not recorded: /r is not a router (not there)'
    client.states = [changed(ROBOT, paused=True)]
    assert run_robot_verb(client, ROBOT, RobotVerb.PAUSE).text == 'Paused'


def test_a_pause_that_is_not_reached_says_how_to_stop_the_robot():
    by_hand = 'if it moves, stop it at its power or its stop button$'
    silent = fleet_state.silent(changed(ROBOT, paused=True), fleet_state.HUNG, 25.0)
    for robot in (ROBOT, silent):
        with pytest.raises(NotReached, match=f'not there; {by_hand}'):
            run_robot_verb(FakeClient(reply=NotReached('not there')), robot, RobotVerb.PAUSE)
    client = FakeClient([], ResultUnknown('no reply'))
    with pytest.raises(ResultUnknown, match=f'did not reply.*{by_hand}'):
        run_robot_verb(client, silent, RobotVerb.PAUSE)
    assert [command for command, *_ in client.commands] == ['pause']
