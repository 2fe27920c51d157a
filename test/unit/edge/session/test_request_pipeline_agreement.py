# SPDX-License-Identifier: Apache-2.0
"""A chunk is held against what was agreed, and joins what is left as RTC and the operator say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.edge.request_pipeline_rig import fill, guided, hear, ROWS, RTC
from support.edge.requester_rig import MS, played

from lerobot_serve.contract.schema import Flag
from lerobot_serve.edge.session.pipeline import ReplyResult
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes

AGREED = replace(RTC, policy='act@0')


def flagged(bench, request, flag: Flag, robot=2 * ROWS, **changes) -> ReplyResult:
    header = request.header.for_reply(flag)
    raw = reply_bytes(request, robot, header=header, model=10 * robot, **changes)
    return bench.pipeline.on_reply(raw, bench.now_ns, bench.settings).result


def test_a_chunk_that_is_longer_than_agreed_is_no_chunk():
    bench = guided(AGREED)
    rows = np.zeros((20_000, 3), np.float32)
    assert hear(bench, bench.send_request(), rows, policy='act@0') is ReplyResult.NO_ACTIONS
    assert bench.drops == {'too_long': 1}
    assert played(bench) == []
    assert hear(bench, bench.send_request(), ROWS, policy='act@0') is ReplyResult.MERGED


@pytest.mark.parametrize('chunk_size', [0, 4])
def test_where_the_size_is_not_exact_there_is_a_bound_too(chunk_size):
    # a router's agreement holds the smallest of its policies
    bench = guided(replace(RTC, chunk_size=chunk_size, policy='a@1|b@2' if chunk_size else ''))
    rows = np.zeros((1001, 3), np.float32)
    assert hear(bench, bench.send_request(), rows, policy='a@1') is ReplyResult.NO_ACTIONS
    assert hear(bench, bench.send_request(), ROWS, policy='b@2') is ReplyResult.MERGED


def test_a_foreign_policy_ends_the_session_so_that_it_is_agreed_again():
    bench = guided(AGREED)
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') is ReplyResult.SESSION_ENDED
    assert bench.drops == {'foreign_policy': 1}
    assert played(bench) == []


def test_a_policy_that_the_server_declares_as_changed_is_taken():
    bench = guided(AGREED)
    assert (
        flagged(bench, bench.send_request(), Flag.POLICY_CHANGED, policy='act@1')
        is ReplyResult.MERGED
    )


def test_a_policy_that_was_declared_is_agreed_from_then_on():
    bench = guided(AGREED)
    flagged(bench, bench.send_request(), Flag.POLICY_CHANGED, policy='act@1')
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') is ReplyResult.MERGED
    # and what was agreed before is no mistake either: it may come back
    assert hear(bench, bench.send_request(), ROWS, policy='act@0') is ReplyResult.MERGED
    assert hear(bench, bench.send_request(), ROWS, policy='act@2') is ReplyResult.SESSION_ENDED
    assert bench.drops == {'policy_changed': 1, 'foreign_policy': 1}


def test_a_declared_change_without_usable_actions_declares_nothing():
    bench = guided(AGREED)
    rows = np.zeros((20_000, 3), np.float32)
    request = bench.send_request()
    flagged(bench, request, Flag.POLICY_CHANGED, robot=rows, policy='act@1')
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') is ReplyResult.SESSION_ENDED


def test_what_was_declared_ends_with_the_session():
    bench = guided(AGREED)
    flagged(bench, bench.send_request(), Flag.POLICY_CHANGED, policy='act@1')
    bench.pipeline.next_session_epoch()
    bench.pipeline.begin_session('/policy_server', AGREED)
    assert hear(bench, bench.send_request(), ROWS, policy='act@1') is ReplyResult.SESSION_ENDED


def test_a_name_that_was_cut_is_known_by_its_beginning():
    long = 'b' * 300
    bench = guided(replace(RTC, policy=f'act@0|{long}'[:256]))
    assert hear(bench, bench.send_request(), ROWS, policy=long[:256]) is ReplyResult.MERGED


# replace belongs to RTC, append is the rest


def left_after(bench, flag: Flag = Flag.NONE) -> list:
    """Return what is played when a chunk comes while rows of another are left."""
    fill(bench)
    request = bench.send_request()
    bench.now_ns += MS
    assert flagged(bench, request, flag, policy='act@0') is ReplyResult.MERGED
    return played(bench)


OLD, NEW = ROWS.tolist(), (2 * ROWS).tolist()


@pytest.mark.parametrize(
    ('agreement', 'pace', 'flag', 'rows'),
    [
        # conditioned: it continues what is left, whatever `merge` says of others
        (RTC, {'append': True}, Flag.NONE, NEW),
        (RTC, {'append': False}, Flag.NONE, NEW),
        # not conditioned: without rtc, with a server that has none, or where it ignored the prefix
        (RTC, {'append': True, 'rtc': False}, Flag.NONE, OLD + NEW),
        (replace(RTC, supports_rtc=False), {'append': True}, Flag.NONE, OLD + NEW),
        (RTC, {'append': True}, Flag.PREFIX_IGNORED, OLD + NEW),
        # an operator chose the jump
        (RTC, {'append': False, 'rtc': False}, Flag.NONE, NEW),
        (RTC, {'append': False}, Flag.PREFIX_IGNORED, NEW),
    ],
)
def test_an_unconditioned_chunk_never_cuts_into_the_running_one(agreement, pace, flag, rows):
    assert left_after(guided(agreement, **pace), flag) == rows


def test_what_is_left_of_another_policy_is_not_cut_into():
    bench = guided(append=True)
    fill(bench, ROWS[:2], 'old@0')
    fill(bench, ROWS[2:], 'new@1')
    request = bench.send_request()
    assert request.prefix_robot.size == 0
    flagged(bench, request, Flag.NONE, policy='new@1')
    assert played(bench) == OLD + NEW
