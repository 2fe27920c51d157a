"""The mailbox: only the newest request of a client, and no client before its turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.server.request_queue_rig import mail, name_of, take_all, thread

from lerobot_serve.server.inference.request_queue import RequestQueue


def test_only_the_newest_is_kept_and_the_others_are_counted():
    mailbox = RequestQueue()
    mails = [mail('a', i, at=i) for i in range(3)]
    replaced = [mailbox.put(each) for each in mails]
    assert [each and each.header.seq for each in replaced] == [None, 0, 1]
    (taken,) = mailbox.take()
    assert (taken.header.seq, taken.arrived_ns, taken.superseded) == (2, 2, 2)
    assert len(mailbox) == 0


def test_superseded_counts_for_the_whole_session_and_for_no_other():
    mailbox = RequestQueue()
    for _ in range(2):
        mailbox.put(mail('a'))
        mailbox.put(mail('a'))
        (taken,) = mailbox.take()
    assert taken.superseded == 2
    mailbox.put(mail('b'))
    assert mailbox.take()[0].superseded == 0


def test_a_chatty_client_keeps_its_place_and_gains_none():
    mailbox = RequestQueue()
    for name, seq in (('a', 1), ('b', 1), ('a', 2), ('c', 1), ('b', 2)):
        mailbox.put(mail(name, seq))
    assert take_all(mailbox) == [('a', 2), ('b', 2), ('c', 1)]


def test_a_client_stands_in_the_line_since_it_asked_first():
    mailbox = RequestQueue()
    mailbox.put(mail('a', at=5, dry=50))
    mailbox.put(mail('a', at=9, dry=90))
    (taken,) = mailbox.take()
    assert (taken.arrived_ns, taken.since_ns, taken.runs_dry_ns) == (9, 5, 50)
    mailbox.put(mail('a', at=12, dry=120))
    (taken,) = mailbox.take()
    assert (taken.since_ns, taken.runs_dry_ns) == (12, 120)


def test_a_robot_that_has_less_to_play_than_it_thought_is_believed():
    mailbox = RequestQueue()
    mailbox.put(mail('a', dry=50))
    mailbox.put(mail('a', dry=40))
    assert mailbox.take()[0].runs_dry_ns == 40


def test_forget_drops_what_waits_and_tells_so():
    mailbox = RequestQueue()
    for name, seq in (('a', 1), ('a', 2), ('b', 1)):
        mailbox.put(mail(name, seq))
    assert mailbox.forget('a#1').header.seq == 2
    assert not mailbox.forget('a#1')
    assert take_all(mailbox) == [('b', 1)]
    mailbox.put(mail('a', 3))
    assert mailbox.take()[0].superseded == 0


def test_only_requests_of_earlier_episodes_are_forgotten():
    mailbox = RequestQueue()
    mailbox.put(mail('a', 1, episode=4))
    mailbox.put(mail('b', 1, episode=4))
    assert not mailbox.forget_episodes_before('a#1', 4)
    assert not mailbox.forget_episodes_before('c#1', 9)
    assert mailbox.forget_episodes_before('a#1', 5).header.episode == 4
    assert not mailbox.forget_episodes_before('a#1', 5)
    assert take_all(mailbox) == [('b', 1)]


def test_clear_returns_what_waited_and_leaves_nothing():
    mailbox = RequestQueue()
    for name, seq in (('a', 1), ('a', 2), ('b', 1)):
        mailbox.put(mail(name, seq))
    assert [(name_of(m), m.header.seq) for m in mailbox.clear()] == [('a', 2), ('b', 1)]
    assert (len(mailbox), mailbox.clear()) == (0, [])
    mailbox.put(mail('a', 3))
    assert mailbox.take()[0].superseded == 0


def test_close_wakes_the_taker_and_nothing_is_taken_after_it():
    mailbox, taken = RequestQueue(), []
    with thread(lambda: taken.append(mailbox.take())):
        mailbox.close()
    assert taken == [None]
    mailbox.put(mail('a'))
    assert mailbox.take() is None


def test_a_deposit_wakes_the_taker():
    mailbox, taken = RequestQueue(), []
    with thread(lambda: taken.extend(mailbox.take())):
        mailbox.put(mail('a', 1))
    assert [one.header.seq for one in taken] == [1]


events = st.lists(st.tuples(st.sampled_from(['put', 'take', 'forget']), st.sampled_from('abcd')))


@given(events)
def test_it_is_a_line_in_which_each_client_stands_once(script):
    mailbox, line, superseded = RequestQueue(), [], {}
    for number, (event, name) in enumerate(script):
        waiting = [entry[0] for entry in line]
        if event == 'put':
            assert bool(mailbox.put(mail(name, number))) == (name in waiting)
            if name in waiting:
                superseded[name] = superseded.get(name, 0) + 1
                line[waiting.index(name)] = (name, number)
            else:
                line.append((name, number))
        elif event == 'forget':
            assert bool(mailbox.forget(f'{name}#1')) == (name in waiting)
            line = [entry for entry in line if entry[0] != name]
            superseded.pop(name, None)
        elif line:
            (taken,) = mailbox.take()
            assert (name_of(taken), taken.header.seq) == line[0]
            assert taken.superseded == superseded.get(line.pop(0)[0], 0)
        assert len(mailbox) == len(line)
