# SPDX-License-Identifier: Apache-2.0
"""The schedulers: whose turn it is, and that nobody is left out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.server.request_queue_rig import name_of, queued

from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.inference.schedulers import (
    BatchSelection,
    DynamicBatching,
    LowestQueueFirst,
    make_scheduler,
    RoundRobin,
    Scheduler,
)

WINDOW_NS = 100
SIZE = 3


@dataclass
class Waits:
    """One request in the line."""

    queued_ns: int
    runs_dry_ns: int = 0


lines = st.lists(st.integers(0, 1000), min_size=1, max_size=8).map(
    lambda times: [Waits(queued_ns) for queued_ns in sorted(times)]
)
dry_lines = st.lists(st.builds(Waits, st.just(0), st.integers(0, 5)), min_size=1, max_size=8)
asks = st.lists(st.tuples(st.sampled_from(['put', 'take']), st.sampled_from('abcd')))


def mailbox_with(scheduler: Scheduler, clients: int = 4, now_ns: int = 0) -> RequestQueue:
    request_queue = RequestQueue(lambda: now_ns)
    request_queue.set_scheduler(scheduler, lambda: clients)
    return request_queue


@given(asks)
def test_round_robin_serves_nobody_twice_while_another_one_waits(script):
    request_queue, since = mailbox_with(RoundRobin()), {}
    for number, (event, name) in enumerate(script):
        if event == 'put':
            request_queue.put(queued(name, at=number))
            since.setdefault(name, set())
        elif len(request_queue):
            (taken,) = request_queue.take_batch()
            served = name_of(taken)
            del since[served]
            for turns in since.values():
                assert served not in turns
                turns.add(served)


@given(dry_lines, st.integers(0, 10))
def test_earliest_dry_serves_who_runs_dry_first_and_of_several_who_came_first(waiting, now_ns):
    pick = LowestQueueFirst().pick(waiting, now_ns, 4)
    ((first,), earliest) = pick.positions, min(one.runs_dry_ns for one in waiting)
    assert waiting[first].runs_dry_ns == earliest
    assert all(one.runs_dry_ns > earliest for one in waiting[:first])
    assert pick.wait_ns == 0


def test_earliest_dry_goes_before_the_order_of_arrival():
    request_queue = mailbox_with(LowestQueueFirst())
    for name, dry in (('a', 30), ('b', 10), ('c', 20), ('d', 10)):
        request_queue.put(queued(name, dry=dry))
    assert [name_of(request_queue.take_batch()[0]) for _ in range(4)] == ['b', 'd', 'c', 'a']


@given(st.lists(st.sampled_from('bcd'), max_size=30))
def test_earliest_dry_lets_nobody_wait_for_ever_however_often_it_asks(others):
    request_queue = mailbox_with(LowestQueueFirst())
    # all stand still: dry at the moment at which they ask; `a` asks again before each turn
    request_queue.put(queued('a', at=0, dry=0))
    for name in 'bcd':
        request_queue.put(queued(name, at=0, dry=0))
    served = []
    for now, name in enumerate([*others, 'b', 'c', 'd', 'b'], 1):
        request_queue.put(queued('a', at=now, dry=now))
        request_queue.put(queued(name, at=now, dry=now))
        served.append(name_of(request_queue.take_batch()[0]))
    assert 'a' in served[:4]


@given(lines, st.integers(0, 1500), st.integers(0, 8))
def test_micro_batch_takes_the_first_of_the_line_or_waits_for_company(waiting, now_ns, clients):
    pick = DynamicBatching(SIZE, WINDOW_NS).pick(waiting, now_ns, clients)
    left_ns = waiting[0].queued_ns + WINDOW_NS - now_ns
    complete = len(waiting) >= min(SIZE, clients)
    if complete or left_ns <= 0:
        assert pick == BatchSelection(tuple(range(min(SIZE, len(waiting)))))
    else:
        assert pick == BatchSelection((), left_ns)


@pytest.mark.parametrize(
    ('times', 'now_ns', 'clients', 'expected'),
    [
        ((0,), 0, 1, BatchSelection((0,))),
        ((0,), 0, 2, BatchSelection((), WINDOW_NS)),
        ((0,), 30, 2, BatchSelection((), 70)),
        ((0, 90), 99, 4, BatchSelection((), 1)),
        ((0, 90), 100, 4, BatchSelection((0, 1))),
        ((0, 90), 90, 2, BatchSelection((0, 1))),
        ((0, 0, 0), 0, 9, BatchSelection((0, 1, 2))),
        ((0, 0, 0, 0, 0), 0, 9, BatchSelection((0, 1, 2))),
    ],
)
def test_micro_batch_by_example(times, now_ns, clients, expected):
    waiting = [Waits(queued_ns) for queued_ns in times]
    assert DynamicBatching(SIZE, WINDOW_NS).pick(waiting, now_ns, clients) == expected


def test_a_mailbox_serves_a_batch_in_the_order_of_the_line():
    request_queue = mailbox_with(DynamicBatching(SIZE, WINDOW_NS), clients=9)
    for name in 'abcde':
        request_queue.put(queued(name))
    assert [name_of(one) for one in request_queue.take_batch()] == ['a', 'b', 'c']
    # the clock stands still, but there are as many as there are clients
    request_queue.set_scheduler(DynamicBatching(SIZE, WINDOW_NS), lambda: 2)
    assert [name_of(one) for one in request_queue.take_batch()] == ['d', 'e']


def test_who_asks_without_a_session_waits_for_nobody():
    request_queue = mailbox_with(DynamicBatching(SIZE, WINDOW_NS), clients=0)
    request_queue.put(queued('a'))
    assert len(request_queue.take_batch()) == 1


def test_a_client_that_asks_again_does_not_hold_up_the_batch():
    request_queue = mailbox_with(DynamicBatching(SIZE, WINDOW_NS), clients=9, now_ns=WINDOW_NS)
    request_queue.put(queued('a', at=0))
    request_queue.put(queued('a', at=WINDOW_NS))
    assert len(request_queue.take_batch()) == 1


def test_a_mailbox_waits_exactly_as_long_as_the_scheduler_says(monkeypatch):
    now_ns, waits = [30_000_000], []
    request_queue = RequestQueue(lambda: now_ns[0])
    request_queue.set_scheduler(DynamicBatching(SIZE, 100_000_000), lambda: 2)

    def wait(timeout_s: float | None = None) -> None:
        waits.append(timeout_s)
        now_ns[0] += int(timeout_s * 1e9)

    monkeypatch.setattr(request_queue._changed, 'wait', wait)
    request_queue.put(queued('a'))
    assert len(request_queue.take_batch()) == 1
    assert waits == [0.07]


@pytest.mark.parametrize(
    ('name', 'kind'), [('round_robin', RoundRobin), ('lowest_queue_first', LowestQueueFirst)]
)
def test_a_scheduler_is_made_by_its_name(name, kind):
    assert type(make_scheduler(name, size=1, window_ns=1, batch_limit=0)) is kind


@pytest.mark.parametrize(('batch_limit', 'together'), [(0, 5), (9, 5), (5, 5), (2, 2), (1, 1)])
def test_no_more_are_served_together_than_the_policy_can(batch_limit, together):
    scheduler = make_scheduler(
        'dynamic_batching', size=5, window_ns=WINDOW_NS, batch_limit=batch_limit
    )
    pick = scheduler.pick([Waits(0)] * 8, 0, 8)
    assert pick.positions == tuple(range(together))
    assert scheduler.pick([Waits(0)], 0, 8).wait_ns == (WINDOW_NS if together > 1 else 0)
