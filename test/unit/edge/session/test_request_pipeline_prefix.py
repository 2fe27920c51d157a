# SPDX-License-Identifier: Apache-2.0
"""What a request says of what is left to play, and of when its answer is expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.edge.request_pipeline_rig import begin_session, fill, guided, hear, ROWS, RTC
from support.edge.requester_rig import Bench, MS, played

from lerobot_serve.edge.session.pipeline import ReplyResult


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
    assert hear(bench, request, ROWS, model=10 * ROWS, policy='act@0') is ReplyResult.MERGED


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
    assert bench.pipeline.in_flight.mark.rows_taken == 0
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
    assert hear(bench, request, ROWS, model=10 * ROWS, policy='act@0') is ReplyResult.MERGED
    assert np.array_equal(played(bench)[0], ROWS[5])
    # the next prefix is as long as that
    assert bench.pipeline._merger.delay_steps(bench.now_ns, bench.settings) == 5
