"""The mailbox: only the newest request of a client, and no client before its turn."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from lerobot_serve.policies.fake import JOINTS
from lerobot_serve.server.mailbox import Mail, Mailbox
from lerobot_serve.server.sessions import Session
from lerobot_serve.wire.session import SessionAsk

WAIT_S = 10.0


def session(name: str) -> Session:
    ask = SessionAsk(name, 1, 1, '/reply', JOINTS, JOINTS, (), 30.0)
    return Session(ask, f'{name}#1', 1, '', ())


def taken(mailbox: Mailbox) -> list[tuple[str, bytes]]:
    """Take everything without waiting."""
    mails = [mailbox.take() for _ in range(len(mailbox))]
    return [(mail.session.ask.client_id, mail.raw) for mail in mails]


def test_only_the_newest_is_kept_and_the_others_are_counted():
    mailbox, robot = Mailbox(), session('a')
    assert [mailbox.put(robot, b'%d' % i, i) for i in range(3)] == [False, True, True]
    mail = mailbox.take()
    assert mail == Mail(robot, b'2', 2, superseded=2)
    assert len(mailbox) == 0


def test_superseded_counts_for_the_whole_session():
    mailbox = Mailbox()
    for _ in range(2):
        mailbox.put(session('a'), b'', 0)
        mailbox.put(session('a'), b'', 0)
        mail = mailbox.take()
    assert mail.superseded == 2


def test_a_chatty_client_keeps_its_place_and_gains_none():
    mailbox = Mailbox()
    for name, raw in (('a', b'1'), ('b', b'1'), ('a', b'2'), ('c', b'1'), ('b', b'2')):
        mailbox.put(session(name), raw, 0)
    assert taken(mailbox) == [('a', b'2'), ('b', b'2'), ('c', b'1')]


def test_forget_drops_what_waits_and_tells_so():
    mailbox = Mailbox()
    mailbox.put(session('a'), b'1', 0)
    mailbox.put(session('a'), b'2', 0)
    mailbox.put(session('b'), b'1', 0)
    assert mailbox.forget('a')
    assert not mailbox.forget('a')
    assert taken(mailbox) == [('b', b'1')]
    mailbox.put(session('a'), b'3', 0)
    assert mailbox.take().superseded == 0


def test_close_wakes_the_taker_and_nothing_is_taken_after_it():
    mailbox, takes = Mailbox(), []
    taker = threading.Thread(target=lambda: takes.append(mailbox.take()))
    taker.start()
    mailbox.close()
    taker.join(WAIT_S)
    assert takes == [None]
    mailbox.put(session('a'), b'', 0)
    assert mailbox.take() is None


def test_a_deposit_wakes_the_taker():
    mailbox, takes = Mailbox(), []
    taker = threading.Thread(target=lambda: takes.append(mailbox.take()))
    taker.start()
    mailbox.put(session('a'), b'1', 0)
    taker.join(WAIT_S)
    assert [mail.raw for mail in takes] == [b'1']


events = st.lists(st.tuples(st.sampled_from(['put', 'take', 'forget']), st.sampled_from('abcd')))


@given(events)
def test_it_is_a_line_in_which_each_client_stands_once(script):
    mailbox, line, superseded = Mailbox(), [], {}
    for number, (event, name) in enumerate(script):
        raw = b'%d' % number
        waiting = [entry[0] for entry in line]
        if event == 'put':
            assert mailbox.put(session(name), raw, number) == (name in waiting)
            if name in waiting:
                superseded[name] = superseded.get(name, 0) + 1
                line[waiting.index(name)] = (name, raw)
            else:
                line.append((name, raw))
        elif event == 'forget':
            assert mailbox.forget(name) == (name in waiting)
            line = [entry for entry in line if entry[0] != name]
            superseded.pop(name, None)
        elif line:
            mail = mailbox.take()
            first = line.pop(0)
            assert (mail.session.ask.client_id, mail.raw) == first
            assert mail.superseded == superseded.get(first[0], 0)
        assert len(mailbox) == len(line)


@given(events)
def test_nobody_has_two_turns_while_another_one_waits(script):
    mailbox, since = Mailbox(), {}
    for event, name in script:
        if event == 'put':
            mailbox.put(session(name), b'', 0)
            since.setdefault(name, set())
        elif event == 'take' and len(mailbox):
            served = mailbox.take().session.ask.client_id
            del since[served]
            for turns in since.values():
                assert served not in turns
                turns.add(served)
