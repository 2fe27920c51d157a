"""The requester when the server refuses, is silent or is gone, and when an operator resets it."""

from __future__ import annotations

from dataclasses import replace
import threading

import pytest
from requester_rig import Bench, CHUNK, MS, PACE, played, starting, WAIT_S

from lerobot_serve.edge.history import History
from lerobot_serve.edge.inputs import Inputs, NotReady
from lerobot_serve.edge.requester import BACKOFF_LIMIT_S
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.schema import Flag, Refusal, Status
from lerobot_serve.wire.session import Refused, Unreachable


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


def test_a_server_that_refuses_at_once_is_asked_once_in_a_control_step():
    bench, waits = Bench(step_s=0.25), []
    bench.hook_waits(waits.append)
    bench.thread.start()
    for _ in range(3):
        bench.answer(bench.request(), status=Status.POLICY_ERROR, status_text='no memory')
    request = bench.request()
    assert waits == [0.25] * 3
    assert bench.requester.progress.failed == 'the server says: no memory'
    bench.answer(request)
    bench.request()
    bench.close()
    assert bench.requester.progress.failed == ''


@pytest.mark.parametrize('status', [Status.NO_SESSION, Status.DRAINING])
def test_a_server_that_does_not_know_the_session_is_asked_for_a_new_one(start, status):
    bench = start()
    bench.answer(bench.request(), status=status, status_text='who are you')
    request = bench.request()
    assert bench.link.epochs == [0, 1]
    assert (request.header.session_epoch, request.header.seq) == (1, 1)


def test_a_timeout_opens_a_new_session_and_the_late_answer_does_not_count(start):
    bench = start(request_timeout_s=1.0)
    request = bench.request()
    bench.now_ns = 1001 * MS
    bench.requester.on_chunk(b'anything wakes the thread')
    second = bench.request()
    assert bench.link.epochs == [0, 1]
    assert second.header.session_epoch == 1
    assert second.header.flags == Flag.EPISODE_START
    assert second.episode_id == request.episode_id
    assert bench.requester.progress.late
    bench.answer(request, 9 * CHUNK)
    bench.answer(second)
    bench.request()
    assert bench.drops == {'encapsulation': 1, 'request_timeout': 1, 'stale_epoch': 1}
    assert played(bench) == CHUNK.tolist()
    assert not bench.requester.progress.late


def test_a_flood_of_other_answers_does_not_put_off_the_timeout(start):
    bench = start(request_timeout_s=1.0)
    request = bench.request()
    for number in range(50):
        bench.now_ns = number * 21 * MS
        bench.answer(request, client_id='robot_2')
    assert bench.request().header.session_epoch == 1


def test_a_refusal_is_visible_and_asked_again_with_growing_pauses():
    refused = Refused(Refusal.CAPACITY, '2 of 2 sessions are open')
    bench, waits = Bench(*[Unreachable('no server')] * 6, refused, backoff_s=0.5), []
    bench.hook_waits(lambda wait_s: waits.append((wait_s, bench.requester.progress.refused)))
    bench.thread.start()
    request = bench.request()
    pauses = [wait_s for wait_s, _ in waits]
    bench.close()
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, BACKOFF_LIMIT_S, BACKOFF_LIMIT_S]
    assert [text for _, text in waits[:7]] == ['no server'] * 6 + ['2 of 2 sessions are open']
    assert bench.requester.progress.refused == ''
    # each attempt has an epoch of its own: an earlier one may have been opened unheard
    assert bench.link.epochs == list(range(8))
    assert request.header.session_epoch == 7


def test_a_reset_drops_the_answer_in_flight_and_begins_an_episode(start):
    bench = start()
    request = bench.request()
    bench.requester.reset()
    second = bench.request()
    assert bench.link.resets == [(0, 1, second.episode_id)]
    assert second.episode_id != request.episode_id
    assert (second.header.episode, second.header.flags) == (1, Flag.EPISODE_START)
    bench.answer(request, 9 * CHUNK)
    bench.answer(second)
    third = bench.request()
    assert (third.header.flags, third.episode_id) == (Flag.NONE, second.episode_id)
    assert bench.drops == {'stale_episode': 1}
    assert played(bench) == CHUNK.tolist()


def test_a_reset_leaves_nothing_of_the_old_episode_to_play():
    bench = Bench()
    bench.actions.append(CHUNK, None)
    bench.requester.reset()
    assert bench.actions.take() is None
    assert bench.actions.rows_cleared == 2


def test_a_reset_without_a_session_begins_the_episode_and_tells_nobody():
    bench = Bench(Unreachable('no server'))
    bench.hook_waits(lambda _: bench.requester.reset())
    bench.thread.start()
    request = bench.request()
    bench.close()
    assert bench.link.resets == []
    assert request.episode_id.endswith('-0002')


def block_on_answer(bench: Bench) -> None:
    bench.thread.start()
    bench.request()


def block_on_backoff(bench: Bench) -> None:
    bench.link.open_errors.append(Unreachable('no server'))
    waiting, wait = threading.Event(), bench.requester._stop.wait

    def tell(timeout: float) -> bool:
        waiting.set()
        return wait(timeout)

    bench.requester._stop.wait = tell
    bench.thread.start()
    assert waiting.wait(WAIT_S)


def block_on_full_queue(bench: Bench) -> None:
    bench.requester.pace = replace(PACE, step_s=1000.0)
    bench.actions.append(CHUNK, None)
    bench.thread.start()


@pytest.mark.parametrize('block', [block_on_answer, block_on_backoff, block_on_full_queue])
def test_close_ends_the_thread_whatever_it_waits_for(block):
    bench = Bench(backoff_s=60.0)
    block(bench)
    bench.requester.close()
    bench.thread.join(2.0)
    assert not bench.thread.is_alive()


def test_a_missing_input_is_named_and_nothing_is_sent():
    bench = Bench()
    bench.requester.history = History(Inputs({'front': 1}))
    assert bench.requester._ask() is None
    assert bench.requester.progress.waiting_for == 'nothing has arrived yet for front'
    assert bench.requester.progress.requests_sent == 0
    assert bench.drops == {}


def test_what_cannot_be_sent_is_counted_and_the_next_observation_is(start):
    bench = Bench()
    bench.link.observe_errors += [
        Malformed('missing_joint', 'no elbow'),
        NotReady('front is 2 s old'),
        Unencodable('a camera of 16 bits'),
    ]
    start(bench)
    bench.answer(bench.request())
    assert bench.request().header.flags == Flag.NONE
    assert bench.drops == {'missing_joint': 1, 'unencodable': 1}
    assert bench.requester.progress.waiting_for == ''


def test_a_request_that_breaks_the_contract_is_counted_and_not_in_flight():
    bench = Bench()
    bench.requester._task = 'x' * 5000
    assert bench.requester._ask() is None
    assert bench.drops == {'unencodable': 1}
    assert '5000 bytes' in bench.requester.progress.waiting_for
    bench.requester._task = ''
    assert bench.requester._ask().seq == 2
    assert bench.request().header.flags == Flag.EPISODE_START
