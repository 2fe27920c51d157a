# SPDX-License-Identifier: Apache-2.0
"""The runs of the action RunEpisode: what is refused, how each ends, and what its result holds."""

from __future__ import annotations

import pytest
from support.edge import operation_rig
from support.edge.controller_rig import arm, GIVING_UP, STEP_NS, WAYS
from support.edge.requester_rig import CHUNK

from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.episode_outcomes import REPORTED_OUTCOMES, RunOutcome
from lerobot_serve.edge.episode_runner import EpisodeRunner
from lerobot_serve.edge.session.connection import ConnectionEvent, ConnectionState
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve_interfaces.action import RunEpisode
from lerobot_serve_interfaces.msg import EpisodeOutcome


class Robot(operation_rig.Robot):
    """All that runs need, without threads; `live` is a control step."""

    def __init__(self, **tick: object) -> None:
        super().__init__(run_on_start=False, robot=arm(0.5), **tick)
        self.requests.now_ns = self.tick.now_ns
        controller, requester = self.tick.controller, self.requests.requester
        self.runs = EpisodeRunner(controller, self.operation, requester, lambda: self.tick.now_ns)

    def begin(self, **goal: object) -> None:
        self.runs.begin(RunEpisode.Goal(**goal))
        requester = self.requests.requester
        requester._start_episode(requester._next_episode.pop())

    def judge(self, outcome: int, episode_id: str, text: str = '') -> None:
        self.runs.on_outcome(EpisodeOutcome(episode_id=episode_id, outcome=outcome, text=text))


@pytest.fixture
def robot() -> Robot:
    return Robot()


def goal(**fields: object) -> RunEpisode.Goal:
    return RunEpisode.Goal(**fields)


REFUSED = [
    ({'task': 'x' * 4097}, 'task must have at most 4096 bytes and episode_id 128'),
    ({'task': 'ü' * 2049}, 'task must have at most 4096 bytes and episode_id 128'),
    ({'episode_id': 'ü' * 65}, 'task must have at most 4096 bytes and episode_id 128'),
    ({'max_duration_s': -1.0}, 'max_duration_s must be 0 (never) or above, got -1.0'),
    ({'max_duration_s': float('nan')}, 'max_duration_s must be 0 (never) or above, got nan'),
]


@pytest.mark.parametrize(('fields', 'text'), REFUSED)
def test_a_goal_that_makes_no_sense_is_refused(robot, fields, text):
    # as it comes from a client that does not look at the bounds
    given = goal()
    for name, value in fields.items():
        setattr(given, f'_{name}', value)
    assert robot.runs.refusal(given) == text


@pytest.mark.parametrize(
    'fields', [{}, {'task': 'x' * 4096, 'episode_id': 'y' * 128}, {'max_duration_s': 1e9}]
)
def test_a_goal_that_makes_sense_is_not(robot, fields):
    assert robot.runs.refusal(goal(**fields)) == ''


def test_one_runs_at_a_time(robot):
    robot.begin()
    assert robot.runs.refusal(goal()) == 'another episode runs; cancel it first'
    robot.runs.cancel()
    robot.runs.poll()
    assert robot.runs.refusal(goal()) == ''


def test_a_run_is_an_episode_with_its_task_and_name(robot):
    robot.begin(task='fold', episode_id='fold-1')
    assert robot.operation.authority is ControlAuthority.POLICY
    status = robot.requests.pipeline.status
    assert (status.task, status.episode_id) == ('fold', 'fold-1')
    assert robot.runs.poll() is None


VERDICTS = [
    (EpisodeOutcome.SUCCESS, RunOutcome.SUCCESS),
    (EpisodeOutcome.FAILURE, RunOutcome.FAILURE),
    (EpisodeOutcome.ABORTED, RunOutcome.FAILURE),
]


@pytest.mark.parametrize(('verdict', 'outcome'), VERDICTS)
def test_whoever_judges_ends_it(robot, verdict, outcome):
    robot.begin(episode_id='fold-1')
    robot.judge(verdict, 'fold-1', 'the towel is folded')
    result = robot.runs.poll()
    assert (result.outcome, result.text) == (outcome, 'the towel is folded')
    assert result.episode_id == 'fold-1'
    assert robot.operation.authority is ControlAuthority.NONE
    assert robot.runs.current is None
    assert robot.runs.poll() is None


@pytest.mark.parametrize(
    ('verdict', 'episode_id'), [(EpisodeOutcome.SUCCESS, 'fold-0'), (0, 'fold-1'), (9, 'fold-1')]
)
def test_a_verdict_on_another_episode_or_without_a_meaning_is_none(robot, verdict, episode_id):
    robot.judge(EpisodeOutcome.SUCCESS, '')
    robot.begin(episode_id='fold-1')
    robot.judge(verdict, episode_id)
    assert robot.runs.poll() is None


def test_the_first_verdict_counts(robot):
    robot.begin(episode_id='fold-1')
    robot.judge(EpisodeOutcome.FAILURE, 'fold-1', 'it fell')
    robot.judge(EpisodeOutcome.SUCCESS, 'fold-1', 'no, it did not')
    robot.runs.cancel()
    assert robot.runs.poll().text == 'it fell'


def test_who_cancels_stops_the_robot_at_the_next_step(robot):
    robot.begin()
    robot.tick.plan(0.25, 0.5, 0.75)
    robot.live()
    robot.runs.cancel()
    assert robot.operation.authority is ControlAuthority.NONE
    robot.live()
    assert robot.tick.controller.rung is RungKind.RAMP
    result = robot.runs.poll()
    assert (result.outcome, result.text) == (RunOutcome.CANCELLED, 'cancelled')


def test_to_cancel_nothing_changes_nothing(robot):
    robot.runs.cancel()
    assert robot.runs.poll() is None


def test_time_ends_it(robot):
    robot.begin(max_duration_s=1.0)
    robot.live(49)
    assert robot.runs.poll() is None
    robot.live(1)
    result = robot.runs.poll()
    assert (result.outcome, result.text) == (RunOutcome.TIMEOUT, '1 s elapsed')
    assert result.duration_s == pytest.approx(1.0)
    robot.begin()
    robot.tick.now_ns += 10**18
    assert robot.runs.poll() is None


def test_a_robot_that_is_given_up_ends_it_and_a_next_one_begins_anew(robot):
    robot.begin()
    robot.lives_through(
        ConnectionEvent.CHUNK_MERGED, ConnectionEvent.SESSION_LOST, ConnectionEvent.INCOMPATIBLE
    )
    result = robot.runs.poll()
    assert (result.outcome, result.text) == (RunOutcome.DEAD, 'told so')
    robot.runs.begin(goal())
    # before the thread of the requests gets to it
    assert robot.runs.poll() is None
    assert robot.requests.connection.state == ConnectionState.CONNECTING


@pytest.mark.parametrize('state', [state for state in ConnectionState if state.name != 'DEAD'])
def test_it_goes_on_whatever_the_connection_does(robot, state):
    robot.begin()
    robot.lives_through(*WAYS[state])
    assert robot.requests.connection.state is state
    assert robot.runs.poll() is None


ENDED_BY = [
    ({'latch_after_trips': 2}, [9.0, 9.0, 9.0], 'Safety cage latched'),
    ({'ladder': GIVING_UP}, [0.0], 'Stop service called'),
]


@pytest.mark.parametrize(('settings', 'rows', 'text'), ENDED_BY)
def test_a_latched_cage_and_a_stop_end_it(settings, rows, text):
    robot = Robot(**settings)
    robot.begin()
    robot.tick.plan(*rows)
    robot.live(20)
    result = robot.runs.poll()
    assert (result.outcome, result.text) == (RunOutcome.STOPPED, text)


def test_a_result_counts_what_happened_since_the_run_began(robot):
    robot.begin(episode_id='first')
    robot.tick.plan(0.25, float('nan'), age_ns=5 * STEP_NS)
    robot.live(4)
    robot.judge(EpisodeOutcome.FAILURE, 'first')
    first = robot.runs.poll()
    assert (first.actions_executed, first.stalls, first.cage_trips) == (4, 1, 1)
    assert first.max_action_age_s == pytest.approx(0.12)
    robot.begin(episode_id='second')
    robot.tick.plan(*[0.25] * 8, age_ns=STEP_NS)
    robot.live(3)
    robot.judge(EpisodeOutcome.SUCCESS, 'second')
    second = robot.runs.poll()
    assert (second.actions_executed, second.stalls, second.cage_trips) == (3, 0, 0)
    assert second.max_action_age_s == pytest.approx(0.06)


def test_a_result_names_the_policy_that_answered(robot):
    robot.begin(episode_id='fold-1')
    request = robot.requests.send_request()
    raw = reply_bytes(request, CHUNK, slot='b', policy='act@0')
    robot.requests.pipeline.on_reply(raw, robot.requests.now_ns, robot.requests.settings)
    robot.judge(EpisodeOutcome.SUCCESS, 'fold-1')
    result = robot.runs.poll()
    assert (result.slot, result.policy) == ('b', 'act@0')


@pytest.mark.parametrize('letter', ['x', '漢', '😀'])
def test_a_long_reason_fits_the_message(robot, letter):
    robot.begin()
    for event in (
        ConnectionEvent.CHUNK_MERGED,
        ConnectionEvent.SESSION_LOST,
        ConnectionEvent.INCOMPATIBLE,
    ):
        robot.requests.connection.handle(event, 5000 * letter)
    assert 0 < len(robot.runs.poll().text.encode()) <= 1024


def test_the_feedback_is_that_of_the_present_run(robot):
    robot.begin()
    robot.tick.plan(0.25, 0.5, age_ns=3 * STEP_NS)
    robot.live(5)
    robot.requests.requester._connect()
    bench = robot.requests
    bench.inbox.put_reply(reply_bytes(bench.send_request(), CHUNK))
    for _ in range(5):
        bench.requester._receive(0.0)
    told = robot.runs.feedback()
    assert (told.state, told.rung) == (ConnectionState.STREAMING, RungKind.RAMP)
    assert told.elapsed_s == pytest.approx(0.1)
    assert told.action_age_s == pytest.approx(0.08)
    assert told.queue_remaining_s == pytest.approx(len(CHUNK) * bench.step_s)
    assert told.actions_executed == 5
    robot.runs.cancel()
    robot.runs.poll()
    assert robot.runs.feedback().elapsed_s == 0.0


def test_a_reset_ends_the_run(robot):
    robot.begin(episode_id='one')
    robot.live()
    robot.runs.stop('~/reset was called')
    result = robot.runs.poll()
    assert (result.outcome, result.text) == (RunOutcome.STOPPED, '~/reset was called')
    assert robot.runs.current is None
    robot.runs.stop('nothing runs')
    assert robot.runs.poll() is None


def test_a_run_without_a_chunk_names_no_policy(robot):
    status = robot.requests.requester.pipeline.status
    robot.begin()
    status.slot, status.policy, status.chunks_accepted = 'a', 'old@1', 3
    robot.runs.cancel()
    assert robot.runs.poll().policy == 'old@1'
    robot.begin()
    robot.runs.cancel()
    result = robot.runs.poll()
    assert (result.slot, result.policy) == ('', '')


def test_the_outcomes_are_those_of_the_action():
    for outcome in RunOutcome:
        assert getattr(RunEpisode.Result, outcome.name) == outcome
    assert {
        EpisodeOutcome.SUCCESS: ('success', RunOutcome.SUCCESS),
        EpisodeOutcome.FAILURE: ('failure', RunOutcome.FAILURE),
        EpisodeOutcome.ABORTED: ('aborted', RunOutcome.FAILURE),
    } == REPORTED_OUTCOMES
