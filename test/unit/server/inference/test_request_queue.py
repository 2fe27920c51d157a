# SPDX-License-Identifier: Apache-2.0
"""The mailbox: only the newest request of a client, and no client before its turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.server.request_queue_rig import name_of, queued, take_all, thread

from lerobot_serve.server.inference.request_queue import RequestQueue


def test_only_the_newest_is_kept_and_the_others_are_counted():
    request_queue = RequestQueue()
    batch = [queued('a', i, at=i) for i in range(3)]
    replaced = [request_queue.put(each) for each in batch]
    assert [each and each.header.seq for each in replaced] == [None, 0, 1]
    (taken,) = request_queue.take_batch()
    assert (taken.header.seq, taken.arrived_ns, taken.superseded) == (2, 2, 2)
    assert len(request_queue) == 0


def test_superseded_counts_for_the_whole_session_and_for_no_other():
    request_queue = RequestQueue()
    for _ in range(2):
        request_queue.put(queued('a'))
        request_queue.put(queued('a'))
        (taken,) = request_queue.take_batch()
    assert taken.superseded == 2
    request_queue.put(queued('b'))
    assert request_queue.take_batch()[0].superseded == 0


def test_a_chatty_client_keeps_its_place_and_gains_none():
    request_queue = RequestQueue()
    for name, seq in (('a', 1), ('b', 1), ('a', 2), ('c', 1), ('b', 2)):
        request_queue.put(queued(name, seq))
    assert take_all(request_queue) == [('a', 2), ('b', 2), ('c', 1)]


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


def test_forget_drops_what_waits_and_tells_so():
    request_queue = RequestQueue()
    for name, seq in (('a', 1), ('a', 2), ('b', 1)):
        request_queue.put(queued(name, seq))
    assert request_queue.discard_session('a#1').header.seq == 2
    assert not request_queue.discard_session('a#1')
    assert take_all(request_queue) == [('b', 1)]
    request_queue.put(queued('a', 3))
    assert request_queue.take_batch()[0].superseded == 0


def test_only_requests_of_earlier_episodes_are_forgotten():
    request_queue = RequestQueue()
    request_queue.put(queued('a', 1, episode=4))
    request_queue.put(queued('b', 1, episode=4))
    assert not request_queue.discard_episodes_before('a#1', 4)
    assert not request_queue.discard_episodes_before('c#1', 9)
    assert request_queue.discard_episodes_before('a#1', 5).header.episode == 4
    assert not request_queue.discard_episodes_before('a#1', 5)
    assert take_all(request_queue) == [('b', 1)]


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
