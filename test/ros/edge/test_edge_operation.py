# SPDX-License-Identifier: Apache-2.0
"""An edge controller in the hands of an operator: runs, pause, reset, the latch of the cage."""

from __future__ import annotations

import time

from action_msgs.msg import GoalStatus
import pytest
from support.nodes.edge_rig import EdgeRig

from lerobot_serve_interfaces.action import RunEpisode
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction

AT_REST = {EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD}
STEERED = {'policy_kind': 'steered'}


@pytest.fixture
def idle(edge_rig) -> EdgeRig:
    """An edge with a server, waiting for a run."""
    edge_rig.start_server()
    edge_rig.start(run_on_start=False)
    return edge_rig


def after(rig: EdgeRig, now_ns: int) -> list[ExecutedAction]:
    """Return what was commanded from the next control step on."""
    rig.wait_for_ticks(5)
    stamped = [a for a in rig.seen.executed if 10**9 * a.stamp.sec + a.stamp.nanosec > now_ns]
    return stamped[1:]


def test_a_run_ends_with_what_its_judge_says(idle):
    run = idle.run(task='reach', episode_id='ep-1')
    idle.wait_for_play()
    idle.judge(EpisodeOutcome.SUCCESS, 'another')
    idle.wait(lambda: run.feedback and run.feedback[-1].actions_executed > 5, 'feedback')
    assert run.feedback[-1].state == EdgeState.STREAMING
    assert not run.ended
    idle.judge(EpisodeOutcome.SUCCESS, 'ep-1')
    status, result = run.result()
    assert (status, result.outcome) == (GoalStatus.STATUS_SUCCEEDED, RunEpisode.Result.SUCCESS)
    assert (result.text, result.episode_id) == ('seen', 'ep-1')
    assert result.policy.startswith('null@')
    assert result.actions_executed > 5
    assert 0 < result.max_action_age_s <= 3.0
    assert {action.episode_id for action in idle.seen.played} == {'ep-1'}
    idle.wait_for_rung(EdgeState.RUNG_HOLD)
    assert 'no episode runs' in idle.wait_for_state(EdgeState.STREAMING, reason='no').reason


def test_nothing_moves_before_a_run_and_a_run_ends_when_its_time_is_over(idle):
    idle.wait_for_state(EdgeState.CONNECTING, reason='no episode runs')
    idle.wait_for_ticks()
    assert idle.seen.last.requests_sent == 0
    assert not idle.body.commands
    status, result = idle.run(max_duration_s=1.0).result()
    assert (status, result.outcome) == (GoalStatus.STATUS_ABORTED, RunEpisode.Result.TIMEOUT)
    assert result.duration_s >= 1.0
    assert {action.rung for action in after(idle, time.time_ns())} <= AT_REST


def test_a_run_ends_in_time_however_seldom_the_state_is_published(edge_rig):
    edge_rig.start_server()
    edge_rig.start(run_on_start=False, status_period_s=10.0)
    _, result = edge_rig.run(max_duration_s=1.0).result()
    assert result.outcome == RunEpisode.Result.TIMEOUT
    assert 1.0 <= result.duration_s < 5.0


def test_a_reset_ends_the_run_and_begins_an_episode_of_its_own(idle):
    run = idle.run(task='reach', episode_id='ep-1')
    idle.wait_for_play()
    idle.trigger('reset')
    status, result = run.result()
    assert (status, result.outcome) == (GoalStatus.STATUS_ABORTED, RunEpisode.Result.STOPPED)
    assert (result.text, result.episode_id) == ('~/reset was called', 'ep-1')
    idle.wait(lambda: idle.seen.played[-1].episode_id != 'ep-1', 'the next episode is played')
    # an outcome of the run that has ended ends nothing
    idle.judge(EpisodeOutcome.SUCCESS, 'ep-1')
    idle.wait_for_play()


def test_the_step_after_a_cancel_is_no_play_and_a_second_goal_is_refused(idle):
    run = idle.run(task='reach')
    idle.wait_for_play()
    status, result = idle.run(task='dance').result()
    assert (status, result.outcome) == (GoalStatus.STATUS_ABORTED, RunEpisode.Result.REFUSED)
    assert 'another episode runs' in result.text
    idle.wait_for_play()
    assert not run.ended
    assert run.cancel()
    rungs = {action.rung for action in after(idle, time.time_ns())}
    assert rungs
    assert rungs <= AT_REST
    status, result = run.result()
    assert (status, result.outcome) == (GoalStatus.STATUS_CANCELED, RunEpisode.Result.CANCELLED)
    # and the next one is begun
    again = idle.run(episode_id='next')
    idle.wait(lambda: idle.seen.played[-1].episode_id == 'next', 'the next run is played')
    assert again.cancel()


def test_nothing_is_commanded_before_the_first_chunk(edge_rig, steering):
    steering.turns.close_gate()
    edge_rig.start_server(**STEERED, policy_path=steering.path())
    edge_rig.start(request_timeout_s=20.0)
    edge_rig.wait(lambda: steering.events('predict'), 'it is asked')
    edge_rig.wait_for_ticks()
    assert not edge_rig.body.commands
    assert not edge_rig.seen.executed
    steering.turns.open_gate()
    edge_rig.wait_for_play()


def test_a_policy_that_gives_nan_makes_the_robot_hold(edge_rig, steering):
    edge_rig.start_server(**STEERED, policy_path=steering.path())
    edge = edge_rig.start()
    edge_rig.wait_for_play()
    run = edge_rig.run(task='nan')
    edge_rig.wait_for_rung(EdgeState.RUNG_HOLD)
    asked = edge_rig.seen.last.requests_sent
    edge_rig.wait(lambda: edge_rig.seen.last.requests_sent >= asked + 10, 'it is asked again')
    begin = len(edge_rig.seen.executed)
    edge_rig.wait_for_ticks()
    held = edge_rig.seen.executed[begin:]
    assert {action.rung for action in held} == {EdgeState.RUNG_HOLD}
    assert len({tuple(action.commanded) for action in held}) == 1
    assert edge.poll() is None
    assert run.cancel()
    edge_rig.run(task='good')
    edge_rig.wait_for_play()
    assert 'Traceback' not in edge_rig.log()
