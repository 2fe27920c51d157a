# SPDX-License-Identifier: Apache-2.0
"""The mailbox: only the newest request of a client, and no client before its turn."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.replacing import replace
from support.server.request_queue_rig import inference, name_of, queued, take_all, thread, WAIT_S

from lerobot_serve.server.inference import schedulers
from lerobot_serve.server.inference.request_queue import QueueClosed, QueuedRequest, RequestQueue


def test_a_client_stands_in_the_line_since_it_asked_first():
    request_queue = RequestQueue()
    request_queue.put(queued('a', at=5, dry=50))
    request_queue.put(queued('a', at=9, dry=90))
    (taken,) = request_queue.take_batch()
    assert (taken.arrived_ns, taken.queued_ns, taken.runs_dry_ns) == (9, 5, 50)
    request_queue.put(queued('a', at=12, dry=120))
    (taken,) = request_queue.take_batch()
    assert (taken.queued_ns, taken.runs_dry_ns) == (12, 120)


def test_a_robot_that_has_less_to_play_than_it_thought_is_believed():
    request_queue = RequestQueue()
    request_queue.put(queued('a', dry=50))
    request_queue.put(queued('a', dry=40))
    assert request_queue.take_batch()[0].runs_dry_ns == 40


def test_a_session_that_ends_takes_what_waits_and_its_counts_along():
    request_queue = RequestQueue()
    for seq in (1, 2):
        request_queue.put(queued('a', seq))
    assert request_queue.discard_session('a#1').header.seq == 2
    request_queue.put(queued('a', 3))
    assert request_queue.take_batch()[0].superseded == 0


def test_clear_returns_what_waited_and_leaves_nothing():
    request_queue = RequestQueue()
    for name, seq in (('a', 1), ('a', 2), ('b', 1)):
        request_queue.put(queued(name, seq))
    assert [(name_of(m), m.header.seq) for m in request_queue.drop_all()] == [('a', 2), ('b', 1)]
    assert (len(request_queue), request_queue.drop_all()) == (0, [])
    request_queue.put(queued('a', 3))
    assert request_queue.take_batch()[0].superseded == 0


def test_close_wakes_the_taker_and_nothing_is_taken_after_it():
    request_queue, taken = RequestQueue(), []
    with thread(lambda: taken.append(request_queue.take_batch())):
        request_queue.close()
    assert taken == [None]
    request_queue.put(queued('a'))
    assert request_queue.take_batch() is None


def test_a_deposit_wakes_the_taker():
    request_queue, taken = RequestQueue(), []
    with thread(lambda: taken.extend(request_queue.take_batch())):
        request_queue.put(queued('a', 1))
    assert [one.header.seq for one in taken] == [1]


events = st.lists(st.tuples(st.sampled_from(['put', 'take', 'forget']), st.sampled_from('abcd')))


@given(events)
def test_it_is_a_line_in_which_each_client_stands_once(script):
    request_queue, line, superseded = RequestQueue(), [], {}
    for number, (event, name) in enumerate(script):
        waiting = [entry[0] for entry in line]
        if event == 'put':
            assert bool(request_queue.put(queued(name, number))) == (name in waiting)
            if name in waiting:
                superseded[name] = superseded.get(name, 0) + 1
                line[waiting.index(name)] = (name, number)
            else:
                line.append((name, number))
        elif event == 'forget':
            assert bool(request_queue.discard_session(f'{name}#1')) == (name in waiting)
            line = [entry for entry in line if entry[0] != name]
            superseded.pop(name, None)
        elif line:
            (taken,) = request_queue.take_batch()
            assert (name_of(taken), taken.header.seq) == line[0]
            assert taken.superseded == superseded.get(line.pop(0)[0], 0)
        assert len(request_queue) == len(line)


# a job that somebody waited for in vain: it must not be done later, behind everybody's back


@pytest.fixture
def blocked():
    """A mailbox whose thread is busy until the event is set."""
    request_queue, begun, go_on = RequestQueue(), threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        go_on.wait()

    thread = threading.Thread(target=request_queue.take_batch)
    thread.start()
    request_queue.submit_job(occupy)
    assert begun.wait(10)
    yield request_queue, go_on
    go_on.set()
    request_queue.close()
    thread.join()


def test_what_nobody_waits_for_any_more_is_not_done(blocked):
    request_queue, go_on = blocked
    done = []
    with pytest.raises(TimeoutError, match=r'did not finish within 0\.01 s'):
        request_queue.run_job(lambda: done.append('late'), 0.01)
    go_on.set()
    request_queue.run_job(lambda: done.append('next'))
    assert done == ['next']


def test_closing_passes_over_what_nobody_waits_for(blocked):
    request_queue, _ = blocked
    with pytest.raises(TimeoutError):
        request_queue.run_job(lambda: None, 0.01)
    waited_for = request_queue.submit_job(lambda: None)
    request_queue.close()
    with pytest.raises(QueueClosed):
        waited_for.result(10)


# requests without a session: however many there are, they have the place of one robot


PLENTY = 1000


def one_shot(number: int, **changes: int) -> QueuedRequest:
    made = queued(f'one#{number}', **changes)
    return replace(made, on_reply=print)


def key(number: int) -> str:
    return one_shot(number).session.session_id


@given(st.integers(1, 600), st.integers(1, 8))
def test_a_robot_waits_for_one_of_them_and_for_each_other_robot_once(goals, robots):
    request_queue = RequestQueue()
    for number in range(goals):
        assert request_queue.put_one_shot(one_shot(number), PLENTY)
    for number in range(robots):
        request_queue.put(queued(f'robot_{number}'))
    order = [name for name, _ in take_all(request_queue)]
    assert order[: robots + 1] == ['one#0', *(f'robot_{number}' for number in range(robots))]
    assert order[robots + 1 :] == [f'one#{number}' for number in range(1, goals)]


def test_robots_that_keep_asking_and_goals_take_turns():
    request_queue, taken = RequestQueue(), []
    for number in range(50):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    for _ in range(10):
        request_queue.put(queued('robot'))
        taken += [name_of(request_queue.take_batch()[0]), name_of(request_queue.take_batch()[0])]
    assert taken[1::2] == ['robot'] * 10
    assert taken[::2] == [f'one#{number}' for number in range(10)]


def test_under_micro_batch_one_of_them_is_in_a_batch():
    request_queue = RequestQueue()
    request_queue.set_scheduler(
        schedulers.make_scheduler('dynamic_batching', size=8, window_ns=0, batch_limit=0),
        lambda: 2,
    )
    for number in range(20):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    for name in ('a', 'b'):
        request_queue.put(queued(name))
    assert sorted(map(name_of, request_queue.take_batch())) == ['a', 'b', 'one#0']


@pytest.mark.parametrize('limit', [1, 2, 16])
def test_the_line_of_goals_is_bounded(limit):
    request_queue = RequestQueue()
    taken = [request_queue.put_one_shot(one_shot(number), limit) for number in range(limit + 3)]
    assert taken == [True] * limit + [False] * 3
    assert len(request_queue) == limit
    request_queue.take_batch()
    assert request_queue.put_one_shot(one_shot(99), limit)
    # a full line of goals takes no place of a robot
    assert request_queue.put(queued('robot')) is None
    assert len(request_queue) == limit + 1


@pytest.mark.parametrize('gone', [0, 1, 2])
def test_one_that_is_withdrawn_leaves_the_others_in_order(gone):
    request_queue = RequestQueue()
    for number in range(3):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    assert name_of(request_queue.withdraw_one_shot(key(gone))) == f'one#{gone}'
    assert request_queue.withdraw_one_shot(key(gone)) is None
    assert [name for name, _ in take_all(request_queue)] == [
        f'one#{n}' for n in range(3) if n != gone
    ]


def test_all_of_them_are_given_back_at_the_end():
    request_queue = RequestQueue()
    for number in range(3):
        request_queue.put_one_shot(one_shot(number), PLENTY)
    request_queue.put(queued('robot'))
    assert len(request_queue.drop_all()) == 4
    assert len(request_queue) == 0
    assert request_queue.put_one_shot(one_shot(9), 1)


# jobs for the inference thread: they go first, and what they do belongs to who asked for them


class Thing:
    """Something that can be seen to go."""


def test_jobs_go_first_in_their_order():
    request_queue, done = RequestQueue(), []
    request_queue.put(queued('a'))
    futures = [request_queue.submit_job(lambda i=i: done.append(i) or i) for i in range(3)]
    (taken,) = request_queue.take_batch()
    assert name_of(taken) == 'a'
    assert done == [0, 1, 2]
    assert [future.result(0) for future in futures] == [0, 1, 2]


def test_a_job_wakes_the_thread_and_runs_in_it():
    request_queue = RequestQueue()
    with inference(request_queue):
        assert request_queue.run_job(threading.get_ident, WAIT_S) != threading.get_ident()


def test_the_error_of_a_job_belongs_to_the_caller():
    request_queue, answered = RequestQueue(), threading.Event()
    with inference(request_queue, lambda batch: answered.set()):
        with pytest.raises(ZeroDivisionError):
            request_queue.run_job(lambda: 1 / 0, WAIT_S)
        request_queue.put(queued('a'))
        assert answered.wait(WAIT_S)


def test_close_fails_what_is_pending_and_what_comes_later():
    request_queue = RequestQueue()
    pending = request_queue.submit_job(lambda: 'never')
    request_queue.close()
    for future in (pending, request_queue.submit_job(lambda: 'never')):
        with pytest.raises(QueueClosed, match='shutting down'):
            future.result(0)
    assert request_queue.take_batch() is None


def test_it_is_idle_only_when_nothing_is_being_answered():
    request_queue = RequestQueue()
    assert request_queue.wait_until_idle(0.0)
    request_queue.put(queued('a'))
    assert not request_queue.wait_until_idle(0.0)
    request_queue.take_batch()
    assert not request_queue.wait_until_idle(0.0)
    request_queue.submit_job(lambda: idle.append(request_queue.wait_until_idle(0.0)))
    idle = []
    request_queue.put(queued('a'))
    request_queue.take_batch()
    assert idle == [False]
    with thread(request_queue.take_batch):
        # taking again says that the last is done
        assert request_queue.wait_until_idle(WAIT_S)
        request_queue.close()


def test_a_closed_mailbox_keeps_nobody_waiting():
    request_queue = RequestQueue()
    request_queue.put(queued('a'))
    request_queue.take_batch()
    request_queue.close()
    assert request_queue.wait_until_idle(0.0)


def test_what_a_job_made_is_the_callers_alone():
    request_queue = RequestQueue()
    with inference(request_queue):
        made = request_queue.run_job(Thing, WAIT_S)
        watched = weakref.ref(made)
        # then the thread waits in take
        assert request_queue.wait_until_idle(WAIT_S)
        del made
        assert watched() is None


def test_what_a_failed_job_held_goes_with_its_error():
    request_queue, watched = RequestQueue(), []

    def load() -> None:
        half_loaded = Thing()
        watched.append(weakref.ref(half_loaded))
        raise MemoryError

    gc.disable()
    try:
        with inference(request_queue):
            with contextlib.suppress(MemoryError):
                request_queue.run_job(load, WAIT_S)
            assert request_queue.wait_until_idle(WAIT_S)
            assert watched[0]() is None
    finally:
        gc.enable()
