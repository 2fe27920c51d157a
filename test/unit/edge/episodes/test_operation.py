# SPDX-License-Identifier: Apache-2.0
"""What people and episodes decide, what follows for the robot, and what the services answer."""

from __future__ import annotations

import pytest
from support.edge.controller_rig import Bench as Tick
from support.edge.controller_rig import GIVING_UP
from support.edge.operation_rig import DEAD, Robot
from support.edge.requester_rig import Simulation

from lerobot_serve.contract.data_path.execution_report import Halt
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.takeover import Takeover

POSE = (Rung(RungKind.REPEAT_LAST, 1.0), Rung(RungKind.STOP_SERVICE))


def test_by_default_the_policy_has_the_say_from_the_start():
    robot = Robot()
    robot.tick.plan(1.0, 2.0)
    assert robot.live(2) == [1.0, 2.0]
    assert robot.operation.authority is ControlAuthority.POLICY
    assert robot.rests == []


def test_a_robot_that_does_not_run_by_itself_waits_for_an_episode():
    robot = Robot(run_on_start=False)
    assert robot.operation.authority is ControlAuthority.NONE
    assert robot.rests == [True]
    robot.tick.plan(1.0, 2.0)
    assert robot.live(2) == [None, None]
    robot.operation.begin_episode(EpisodeRequest())
    assert (robot.operation.authority, robot.rests) == (ControlAuthority.POLICY, [True, False])
    robot.operation.end_episode()
    assert (robot.operation.authority, robot.rests) == (ControlAuthority.NONE, [True, False, True])


def test_a_pause_comes_to_rest_and_what_is_left_is_played_afterwards():
    robot = Robot()
    robot.tick.plan(1.0, 1.0, 2.0, 3.0)
    robot.live(2)
    assert robot.operation.pause() == (True, 'Paused. The robot slows down to rest')
    assert robot.operation.paused
    assert (robot.operation.authority, robot.rests) == (ControlAuthority.OPERATOR, [True])
    assert robot.live(3) == [1.0] * 3
    assert robot.tick.controller.rung_reason == 'hold: paused'
    told = (True, 'Resumed. Stale actions are discarded')
    assert robot.operation.resume() == told
    assert not robot.operation.paused
    assert (robot.operation.authority, robot.rests) == (ControlAuthority.POLICY, [True, False])
    assert robot.live(2) == [2.0, 3.0]


def test_each_is_told_once():
    robot = Robot()
    for _ in range(3):
        robot.operation.pause()
        robot.operation.update()
    assert robot.rests == [True]
    for _ in range(3):
        robot.operation.resume()
    assert robot.rests == [True, False]


def test_a_robot_that_is_given_up_is_torn_down_once_until_an_episode_begins():
    robot = Robot(has_stop_service=False)
    robot.tick.plan(0.0, 0.0)
    robot.live(2)
    robot.lives_through(*DEAD)
    assert robot.operation.authority is ControlAuthority.TEARDOWN
    assert robot.live(30)[6:] == [None] * 24
    robot.tick.plan(5.0, 6.0)
    assert robot.live() == [None]
    # what was left ends with the episode
    robot.operation.begin_episode(EpisodeRequest())
    assert robot.requests.connection.state == ConnectionState.CONNECTING
    assert robot.operation.authority is ControlAuthority.POLICY
    robot.tick.plan(7.0)
    assert robot.live() == [7.0]


# a robot that is given up while it is paused


def test_a_teardown_waits_for_the_operator():
    """Server dies, operator pauses to have a look, connection is given up: nothing moves."""
    robot = Robot(teardown=POSE)
    robot.tick.plan(0.0, 0.0)
    robot.live(2)
    robot.lives_through(*DEAD[:2])
    robot.operation.pause()
    robot.live(5)
    robot.lives_through(DEAD[2])
    assert robot.requests.connection.state is ConnectionState.DEAD
    assert robot.operation.authority is ControlAuthority.OPERATOR
    assert robot.live(500) == [0.0] * 500
    assert robot.tick.stops == 0
    done, text = robot.operation.resume()
    assert done
    assert '(told so). No policy controls the robot. Teardown started' in text
    assert robot.live(60)[:50] == [0.0] * 50
    assert robot.tick.stops == 1


def test_between_episodes_a_robot_that_is_given_up_is_not_torn_down():
    robot = Robot(teardown=POSE)
    robot.tick.plan(0.0, 0.0)
    robot.live(2)
    robot.operation.end_episode()
    robot.lives_through(*DEAD)
    assert robot.operation.authority is ControlAuthority.NONE
    assert robot.live(500) == [0.0] * 500
    assert robot.tick.stops == 0


def test_a_resume_of_a_robot_that_is_given_up_says_so():
    robot = Robot(teardown=())
    robot.tick.plan(0.0, 0.0)
    robot.live(2)
    robot.operation.pause()
    robot.lives_through(*DEAD)
    done, text = robot.operation.resume()
    assert not done
    assert '(told so). No policy controls the robot. No motion' in text
    assert '~/reset' in text


def test_a_resume_says_that_a_robot_that_played_nothing_is_not_torn_down():
    robot = Robot(teardown=POSE)
    robot.operation.pause()
    robot.lives_through(*DEAD)
    done, text = robot.operation.resume()
    assert (done, 'No motion' in text) == (False, True)
    assert robot.live(100) == [None] * 100


# a stop by service


def stopped() -> Robot:
    robot = Robot(ladder=GIVING_UP)
    robot.tick.plan(0.0, 0.0)
    robot.live(20)
    assert robot.tick.stops == 1
    return robot


def test_a_stop_by_service_is_lifted_by_a_reset_alone():
    robot = stopped()
    assert 'call ~/reset' in robot.operation.start_refusal()
    robot.tick.plan(1.0, 1.0)
    assert robot.operation.resume() == (
        False,
        'Not paused. Stop service called. Fix the cause, then call ~/reset',
    )
    robot.operation.pause()
    assert robot.live(3) == [None] * 3
    done, text = robot.operation.resume()
    assert not done
    assert 'Stop service called' in text
    # as a RunEpisode that was asked for just before the stop
    robot.operation.begin_episode(EpisodeRequest())
    robot.tick.plan(1.0, 1.0)
    assert robot.live(3) == [None] * 3
    assert robot.operation.authority is ControlAuthority.NONE
    told = (True, 'Stop cleared. The next episode starts')
    assert robot.operation.reset(EpisodeRequest()) == told
    robot.tick.plan(2.0, 2.0)
    robot.live()
    assert robot.operation.start_refusal() == ''
    assert robot.live() == [2.0]


def test_a_reset_while_paused_waits_for_the_resume():
    robot = stopped()
    robot.operation.pause()
    done, text = robot.operation.reset(EpisodeRequest())
    assert (done, 'after ~/resume' in text) == (True, True)
    robot.tick.plan(1.0, 1.0)
    assert robot.live(3) == [None] * 3
    robot.operation.resume()
    assert robot.live(1) == [1.0]


def test_the_requester_learns_that_the_robot_halts_and_no_longer_does():
    robot, told = Robot(latch_after_trips=1), []
    robot.requests.requester.set_halted = lambda *, halted: told.append(halted)
    robot.tick.plan(float('nan'), float('nan'))
    robot.live(2)
    assert robot.tick.controller.halt is Halt.LATCHED
    robot.operation.update()
    assert told[0] is False
    assert told[-1] is True
    robot.operation.pause()
    assert robot.operation.reset_cage() == (True, 'Cage latch cleared')
    robot.live(1)
    robot.operation.update()
    assert told[-1] is False, 'a pause is not a halt'
    assert robot.tick.controller.halt is Halt.NONE


def test_a_reset_says_what_it_does_not_lift():
    robot = Robot(latch_after_trips=1)
    robot.tick.plan(float('nan'), float('nan'))
    robot.live(2)
    assert robot.tick.controller.latched
    assert 'call ~/reset_cage' in robot.operation.start_refusal()
    done, text = robot.operation.reset(EpisodeRequest())
    assert (done, '~/reset_cage' in text) == (False, True)
    robot.tick.plan(1.0)
    assert robot.live() == [None]
    assert robot.operation.reset_cage() == (True, 'Cage latch cleared')
    robot.live(2)
    assert robot.operation.reset_cage() == (False, 'Cage is not latched')
    assert robot.operation.authority is ControlAuthority.POLICY


def test_a_resume_without_a_pause_says_that_nothing_was_done():
    robot = Robot(run_on_start=False)
    told = 'Not paused. No episode runs. Send a goal to ~/run_episode or call ~/reset'
    assert robot.operation.resume() == (False, told)
    for done in 'Paused', 'Already paused':
        assert robot.operation.pause() == (True, f'{done}. No commands are sent. No episode runs')


TABLE = [
    # dead, paused, an episode runs -> who has it
    (False, False, True, ControlAuthority.POLICY),
    (False, False, False, ControlAuthority.NONE),
    (False, True, True, ControlAuthority.OPERATOR),
    (False, True, False, ControlAuthority.OPERATOR),
    (True, False, True, ControlAuthority.TEARDOWN),
    (True, False, False, ControlAuthority.NONE),
    (True, True, True, ControlAuthority.OPERATOR),
    (True, True, False, ControlAuthority.OPERATOR),
]


@pytest.mark.parametrize(('dead', 'paused', 'runs', 'say'), TABLE)
def test_who_has_the_say(dead, paused, runs, say):
    robot = Robot(run_on_start=runs)
    if paused:
        robot.operation.pause()
    if dead:
        robot.lives_through(*DEAD)
    assert robot.operation.authority is say
    assert robot.requests.requester._idle.is_set() == (say is not ControlAuthority.POLICY)


def test_what_begins_while_paused_waits_for_the_resume():
    robot = Robot(run_on_start=False)
    robot.operation.pause()
    robot.operation.begin_episode(EpisodeRequest())
    assert robot.operation.authority is ControlAuthority.OPERATOR
    robot.operation.resume()
    assert robot.operation.authority is ControlAuthority.POLICY


def test_between_two_episodes_nothing_is_asked():
    bench = Simulation(servers=('/a',))
    decisions = RobotDecisions()
    operation = OperatorControl(
        Tick().controller,
        bench.requester,
        Takeover(None, decisions),
        decisions,
        run_on_start=False,
    )
    bench.at(2.0, lambda: operation.begin_episode(EpisodeRequest('', 'one')))
    bench.at(4.0, operation.end_episode)
    bench.at(8.0, lambda: operation.begin_episode(EpisodeRequest('', 'two')))
    bench.run(9.0)
    times = [at_s for at_s, _, _ in bench.requests]
    assert min(times) == 2.0
    assert [at_s for at_s in times if 4.0 < at_s < 8.0] == []
    names = {request.episode_id: at_s for at_s, _, request in bench.requests}
    assert list(names) == ['one', 'two']


def test_what_a_service_clears_holds_for_the_next_call_at_once():
    robot = Robot(ladder=GIVING_UP, latch_after_trips=1)
    robot.tick.plan(1.0)
    robot.live(20)
    assert robot.operation.start_refusal().startswith('Stop service called')
    robot.operation.reset(EpisodeRequest())
    assert robot.operation.start_refusal() == ''
    robot.live()
    robot.tick.plan(1e6)
    robot.live()
    assert robot.operation.start_refusal().startswith('Safety cage latched')
    assert robot.operation.reset_cage()[0]
    assert robot.operation.reset(EpisodeRequest()) == (True, 'The next episode starts')
    robot.live()
    assert not robot.tick.controller.latched


def test_an_episode_has_its_id_before_the_request_thread_knows_it():
    robot = Robot()
    robot.operation.begin_episode(EpisodeRequest('', 'first'))
    requester = robot.requests.requester
    requester._start_episode(requester._next_episode.pop())
    assert robot.operation.episode_id == 'first'
    robot.operation.begin_episode(EpisodeRequest('', 'second'))
    assert robot.operation.episode_id == 'second'
    # one without an id has none until the request thread gives it one
    robot.operation.reset(EpisodeRequest())
    assert robot.operation.episode_id == ''
    requester._start_episode(requester._next_episode.pop())
    assert robot.operation.episode_id not in ('', 'first', 'second')
