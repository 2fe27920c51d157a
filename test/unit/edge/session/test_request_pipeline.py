# SPDX-License-Identifier: Apache-2.0
"""One request after the other: which answers count, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.request_pipeline_rig import begin_session, fill, guided, hear, ROWS, RTC
from support.edge.requester_rig import Bench, CHUNK, MS, played
from support.replacing import replace

from lerobot_serve.contract.data_path.execution_report import decode, ExecutedRun, ExecutionReport
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.edge.action_queue import DELAY_RULES, elapsed_time
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.request import ABANDONED, ENDS_SESSION, OK
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes

# how a chunk joins what is left


@pytest.mark.parametrize(
    ('name', 'first'), [('moving_time', 1), ('elapsed_time', 3), ('lerobot', 3)]
)
def test_the_rule_of_delay_decides_where_a_chunk_begins(name, first):
    bench = guided()
    bench.actions.rule = DELAY_RULES[name]
    fill(bench)
    request = bench.send_request()
    bench.actions.take()
    bench.now_ns += 21 * MS
    hear(bench, request, 2 * ROWS)
    assert played(bench) == (2 * ROWS[first:]).tolist()


def test_the_delay_is_that_of_the_arrival_not_of_the_look():
    bench = guided()
    bench.actions.rule = elapsed_time
    raw = reply_bytes(bench.send_request(), ROWS)
    bench.now_ns += 500 * MS
    bench.pipeline.on_reply(raw, 10 * MS, bench.settings)
    assert played(bench) == ROWS[1:].tolist()
    assert bench.pipeline.status.round_trip_ms == 10.0


def test_a_chunk_is_appended_where_the_robot_appends():
    bench = guided(merge_mode='append', rtc=False)
    fill(bench)
    request = bench.send_request()
    bench.actions.take()
    bench.now_ns += 50 * MS
    assert hear(bench, request, 2 * ROWS, model=3 * ROWS, policy='act@0') == OK
    assert np.array_equal(bench.actions.leftover(99).model, [*10 * ROWS[1:], *3 * ROWS])
    assert played(bench) == [*ROWS[1:].tolist(), *(2 * ROWS).tolist()]


@pytest.mark.parametrize('merge_mode', ['append', 'replace'])
def test_a_chunk_of_an_episode_that_has_ended_is_refused(merge_mode):
    bench = guided(merge_mode=merge_mode, rtc=False)
    request = bench.send_request()
    # whoever ends it clears at once; the thread has not got to it yet
    bench.actions.clear()
    assert hear(bench, request) == ABANDONED
    assert played(bench) == []
    assert bench.session.in_flight is None
    assert bench.actions.chunks_refused == 1
    assert (bench.pipeline.status.chunks_accepted, bench.pipeline.status.slot) == (0, '')
    # nor does the server know by it that an episode began
    assert bench.send_request().header.flags == Flag.EPISODE_START


BAD_MODELS = [
    (10 * CHUNK * np.nan, 'not_finite'),
    (10 * CHUNK + np.array([[0, np.inf, 0], [0, 0, 0]], np.float32), 'not_finite'),
    (10 * CHUNK[:1], 'wrong_shape'),
    (np.concatenate([CHUNK, CHUNK]), 'wrong_shape'),
]


@pytest.mark.parametrize(('model', 'reason'), BAD_MODELS)
def test_actions_in_the_units_of_the_policy_are_looked_at_too(model, reason):
    bench = guided()
    assert hear(bench, bench.send_request(), CHUNK, model=model) == reason
    assert bench.drops == {reason: 1}
    assert played(bench) == []


def test_actions_in_the_units_of_the_policy_may_have_other_columns():
    bench = guided()
    model = np.arange(10, dtype=np.float32).reshape(2, 5)
    assert hear(bench, bench.send_request(), CHUNK, model=model) == OK
    assert np.array_equal(bench.actions.leftover(9).model, model)


ENDS = [
    (Status.POLICY_ERROR, False, 'policy_error'),
    (Status.TOO_LATE, False, 'too_late'),
    (Status.NOT_FINITE, False, 'not_finite'),
    (77, False, 'unknown_status'),
    (Status.NO_SESSION, True, 'no_session'),
    (Status.DRAINING, True, 'draining'),
]


@pytest.mark.parametrize(('status', 'is_over', 'reason'), ENDS)
def test_an_answer_that_is_no_chunk_says_what_it_is(status, is_over, reason):
    bench = guided()
    assert hear(bench, bench.send_request(), CHUNK[:0], status=status) == reason
    assert (reason in ENDS_SESSION) == is_over
    assert bench.drops == {reason: 1}
    assert bench.pipeline.status.last_failure == f'server error: {reason}'
    assert bench.session.in_flight is None


def test_a_change_of_policy_is_counted_and_the_chunk_is_played():
    bench = guided()
    request = bench.send_request()
    flags = Flag.POLICY_CHANGED | Flag.STATE_LOST
    assert hear(bench, request, header=request.header.for_reply(flags)) == OK
    assert bench.drops == {'policy_changed': 1, 'state_lost': 1}
    assert played(bench) == CHUNK.tolist()


def test_a_request_tells_what_was_executed():
    bench = guided()
    run = ExecutedRun(7, 9, 4, CHUNK)
    bench.executed = ExecutionReport(50, 4, 3, 2, 1, 0.25, (run,))
    told = decode(bench.send_request().extensions[0])
    assert (told.actions, told.fallbacks, told.trips, told.stalls) == (50, 4, 3, 2)
    assert (told.dropped_rows, told.oldest_age_s) == (1, 0.25)
    assert (told.runs[0].seq, told.runs[0].session_epoch, told.runs[0].first_row) == (7, 9, 4)
    assert np.array_equal(told.runs[0].rows, CHUNK)


# episodes


def test_an_episode_that_begins_ends_no_other_and_refuses_what_was_asked_for_before():
    bench = guided()
    hear(bench, bench.send_request())
    mark = bench.actions.mark()
    bench.pipeline.begin_episode(EpisodeRequest())
    # the requester has ended the one before, when it was told to
    assert bench.actions.episodes_ended == 0
    assert (bench.actions.rows_left, bench.actions.epoch) == (0, mark.epoch + 1)


def test_an_episode_that_nobody_named_gets_a_name_and_a_named_one_keeps_it():
    bench = guided()
    for episode, name in [(EpisodeRequest('a'), '-0002'), (EpisodeRequest('b', 'mine'), 'mine')]:
        bench.pipeline.begin_episode(episode)
        assert bench.pipeline.status.episode_id.endswith(name)
        assert bench.send_request().task == episode.task
    assert bench.transport.resets == [(0, 1, 'robot_1-00000000-0002'), (0, 2, 'mine')]
    bench.session.lost('gone')
    bench.pipeline.begin_episode(EpisodeRequest('', 'not told'))
    assert len(bench.transport.resets) == 2


def test_a_request_that_cannot_be_sent_leaves_one_whose_reply_is_late(monkeypatch):
    bench = guided()
    late = bench.send_request()
    bench.pipeline.mark_overdue()

    def refuse(_: object) -> None:
        raise Unencodable('a camera of 16 bits')

    with monkeypatch.context() as broken:
        broken.setattr(bench.observations, 'read', refuse)
        assert bench.pipeline.send_request(bench.settings) is None
    assert hear(bench, late) == OK


def test_a_message_that_cannot_be_read_explains_no_later_request():
    bench = guided()
    bench.send_request()
    bench.pipeline.on_reply(b'?', bench.now_ns, bench.settings)
    assert 'same version' in bench.pipeline.unreadable
    bench.pipeline.mark_overdue()
    bench.send_request()
    assert bench.pipeline.unreadable == ''


# a chunk is held against what was agreed, and joins what is left as RTC and the operator say


AGREED = replace(RTC, policy='act@0')


def flagged(bench, request, flag: Flag, robot=2 * ROWS, **changes) -> str:
    header = request.header.for_reply(flag)
    return hear(bench, request, robot, header=header, model=10 * robot, **changes)


def test_a_chunk_that_is_longer_than_agreed_is_no_chunk():
    bench = guided(AGREED)
    rows = np.zeros((20_000, 3), np.float32)
    assert hear(bench, bench.send_request(), rows, policy='act@0') == 'too_long'
    assert bench.drops == {'too_long': 1}
    assert played(bench) == []
    assert hear(bench, bench.send_request(), ROWS, policy='act@0') == OK


@pytest.mark.parametrize('chunk_size', [0, 4])
def test_where_the_size_is_not_exact_there_is_a_bound_too(chunk_size):
    # a router's agreement holds the smallest of its policies
    bench = guided(replace(RTC, chunk_size=chunk_size, policy='a@1|b@2' if chunk_size else ''))
    rows = np.zeros((1001, 3), np.float32)
    assert hear(bench, bench.send_request(), rows, policy='a@1') == 'too_long'
    assert hear(bench, bench.send_request(), ROWS, policy='b@2') == OK


def test_a_foreign_policy_ends_the_session_so_that_it_is_agreed_again():
    bench = guided(AGREED)
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') == 'foreign_policy'
    assert bench.drops == {'foreign_policy': 1}
    assert played(bench) == []


def test_a_policy_that_was_declared_is_agreed_from_then_on():
    bench = guided(AGREED)
    flagged(bench, bench.send_request(), Flag.POLICY_CHANGED, policy='act@1')
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') == OK
    # and what was agreed before is no mistake either: it may come back
    assert hear(bench, bench.send_request(), ROWS, policy='act@0') == OK
    assert hear(bench, bench.send_request(), ROWS, policy='act@2') == 'foreign_policy'
    assert bench.drops == {'policy_changed': 1, 'foreign_policy': 1}


def test_a_declared_change_without_usable_actions_declares_nothing():
    bench = guided(AGREED)
    rows = np.zeros((20_000, 3), np.float32)
    request = bench.send_request()
    flagged(bench, request, Flag.POLICY_CHANGED, robot=rows, policy='act@1')
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') == 'foreign_policy'


def test_what_was_declared_ends_with_the_session():
    bench = guided(AGREED)
    flagged(bench, bench.send_request(), Flag.POLICY_CHANGED, policy='act@1')
    begin_session(bench, AGREED)
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') == 'foreign_policy'


def test_a_name_that_was_cut_is_known_by_its_beginning():
    long = 'b' * 300
    bench = guided(replace(RTC, policy=f'act@0|{long}'[:256]))
    assert hear(bench, bench.send_request(), ROWS, policy=long[:256]) == OK


# replace belongs to RTC, append is the rest


def left_after(bench, flag: Flag = Flag.NONE) -> list:
    """Return what is played when a chunk comes while rows of another are left."""
    fill(bench)
    request = bench.send_request()
    bench.now_ns += MS
    assert flagged(bench, request, flag, policy='act@0') == OK
    return played(bench)


OLD, NEW = ROWS.tolist(), (2 * ROWS).tolist()


@pytest.mark.parametrize(
    ('agreement', 'pace', 'flag', 'rows'),
    [
        # conditioned: it continues what is left, whatever `merge` says of others
        (RTC, {'merge_mode': 'append'}, Flag.NONE, NEW),
        (RTC, {'merge_mode': 'replace'}, Flag.NONE, NEW),
        # not conditioned: without rtc, with a server that has none, or where it ignored the prefix
        (RTC, {'merge_mode': 'append', 'rtc': False}, Flag.NONE, OLD + NEW),
        (replace(RTC, supports_rtc=False), {'merge_mode': 'append'}, Flag.NONE, OLD + NEW),
        (RTC, {'merge_mode': 'append'}, Flag.PREFIX_IGNORED, OLD + NEW),
        # an operator chose the jump
        (RTC, {'merge_mode': 'replace', 'rtc': False}, Flag.NONE, NEW),
        (RTC, {'merge_mode': 'replace'}, Flag.PREFIX_IGNORED, NEW),
    ],
)
def test_an_unconditioned_chunk_never_cuts_into_the_running_one(agreement, pace, flag, rows):
    assert left_after(guided(agreement, **pace), flag) == rows


def test_what_is_left_of_another_policy_is_not_cut_into():
    bench = guided(merge_mode='append')
    fill(bench, ROWS[:2], 'old@0')
    fill(bench, ROWS[2:], 'new@1')
    request = bench.send_request()
    assert request.prefix_robot.size == 0
    flagged(bench, request, Flag.NONE, policy='new@1')
    assert played(bench) == OLD + NEW


# what a request says of what is left to play, and of when its answer is expected


@pytest.mark.parametrize(
    ('horizon', 'chunk_size', 'rows'), [(0, 6, 6), (4, 6, 4), (7, 6, 6), (0, 50, 8), (1, 6, 1)]
)
def test_what_is_left_goes_along_as_far_as_it_may_guide(horizon, chunk_size, rows):
    bench = guided(replace(RTC, chunk_size=chunk_size), execution_horizon=horizon)
    fill(bench)
    request = bench.send_request()
    assert np.array_equal(request.prefix_robot, ROWS[:rows])
    assert np.array_equal(request.prefix_model, 10 * ROWS[:rows])
    assert request.prefix_policy == 'act@0'


def test_a_prefix_begins_with_the_next_action_to_play():
    bench = guided()
    fill(bench)
    bench.actions.take()
    bench.actions.take()
    request = bench.send_request()
    assert np.array_equal(request.prefix_robot, ROWS[2:])
    assert request.queue_remaining_s == pytest.approx(0.06)


WITHOUT = [
    (RTC, {'rtc': False}),
    (replace(RTC, supports_rtc=False), {}),
]


@pytest.mark.parametrize(('agreement', 'pace'), WITHOUT)
def test_without_guidance_nothing_that_is_left_goes_along(agreement, pace):
    bench = guided(agreement, **pace)
    fill(bench)
    request = bench.send_request()
    assert (request.prefix_robot.size, request.prefix_model.size) == (0, 0)
    assert (request.prefix_policy, request.inference_delay_steps) == ('', 0)
    assert request.queue_remaining_s == pytest.approx(0.08)


def test_an_empty_prefix_stays_empty():
    bench = guided()
    answered_in(bench, 30)
    answered_in(bench, 30)
    answered_in(bench, 30)
    assert played(bench)
    request = bench.send_request()
    assert (request.prefix_robot.shape, request.prefix_model.shape) == ((0, 0), (0, 0))
    assert (request.prefix_policy, request.inference_delay_steps) == ('', 0)


def test_a_prefix_ends_where_another_policy_begins():
    bench = guided()
    fill(bench, ROWS[:2], 'old@0')
    fill(bench, ROWS[2:], 'new@1')
    assert bench.send_request().prefix_robot.size == 0
    bench.pipeline.mark_overdue()
    bench.actions.take()
    bench.actions.take()
    request = bench.send_request()
    assert request.prefix_policy == 'new@1'
    assert np.array_equal(request.prefix_robot, ROWS[2:])


# how late the answer is expected


def answered_in(bench: Bench, milliseconds: int) -> None:
    request = bench.send_request()
    bench.now_ns += milliseconds * MS
    assert hear(bench, request, ROWS, model=10 * ROWS, policy='act@0') == OK


def test_the_delay_is_the_longest_round_trip_of_this_server_without_its_warm_up():
    bench = guided()
    delays = []
    for milliseconds in (70, 60, 11, 35, 20):
        answered_in(bench, milliseconds)
        delays.append(bench.send_request().inference_delay_steps)
        bench.pipeline.mark_overdue()
    assert delays == [0, 0, 2, 4, 4]
    # a new session warms up again, and what was known of the server stays known
    begin_session(bench)
    for milliseconds in (900, 800):
        answered_in(bench, milliseconds)
    assert bench.send_request().inference_delay_steps == 4
    begin_session(bench, server='/b')
    assert bench.send_request().inference_delay_steps == 0


def test_the_delay_is_never_longer_than_what_is_left():
    bench = guided()
    for _ in range(3):
        answered_in(bench, 35)
    while bench.actions.rows_left > 2:
        bench.actions.take()
    request = bench.send_request()
    assert (len(request.prefix_robot), request.inference_delay_steps) == (2, 2)


def test_the_mark_is_of_the_moment_before_the_frames_are_encoded():
    bench = guided()
    fill(bench)
    read = bench.observations.read

    def slowly(steps: tuple) -> tuple:
        bench.actions.take()
        bench.now_ns += 25 * MS
        return read(steps)

    bench.observations.read = slowly
    bench.pipeline.send_request(bench.settings)
    assert bench.session.in_flight.mark.rows_taken == 0
    # the prefix is of that moment, too
    assert np.array_equal(bench.request().prefix_robot, ROWS)


def test_what_is_executed_while_frames_are_encoded_is_not_played_again():
    bench = guided()
    for _ in range(2):
        answered_in(bench, 10)
    read = bench.observations.read

    def slowly(steps: tuple) -> tuple:
        bench.now_ns += 25 * MS
        return read(steps)

    bench.observations.read = slowly
    request = bench.send_request()
    # the robot has played three actions of 10 ms while the frames were encoded, and two since
    for _ in range(5):
        bench.actions.take()
    bench.now_ns += 20 * MS
    assert hear(bench, request, ROWS, model=10 * ROWS, policy='act@0') == OK
    assert np.array_equal(played(bench)[0], ROWS[5])
    # the next prefix is as long as that
    assert bench.merger.delay_steps(bench.now_ns) == 5
