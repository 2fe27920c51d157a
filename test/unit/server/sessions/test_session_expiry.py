# SPDX-License-Identifier: Apache-2.0
"""Sessions whose robot is gone end, and no others."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, RuleBasedStateMachine
import pytest
from support.server.session_rig import ask, RULES, S, table

from lerobot_serve.contract.services.session import SessionRefused

MANY = 10


def reasons(sessions, now_s: float, *, listening: bool) -> list[str]:
    return [reason for _, reason in sessions.close_expired(int(now_s * S), lambda _: listening)]


def test_a_robot_that_was_never_heard_and_never_listened_is_gone_after_the_grace_time():
    sessions = table()
    session = sessions.open(ask(), 0, MANY)
    assert reasons(sessions, 5, listening=False) == []
    assert sessions.close_expired(5 * S + 1, lambda _: False) == [(session, 'client_gone')]
    assert len(sessions) == 0
    assert not sessions.is_open(session)
    assert reasons(sessions, 6, listening=False) == []


# when it was looked at, whether somebody listened to the chunks, and why the session ended then
STORIES = {
    'a listener keeps a silent robot': [(59, True, [])],
    'the grace time counts since the listener went': [
        (20, True, []),
        (22, False, []),
        (27, False, []),
        (27.1, False, ['client_gone']),
    ],
    'a listener that comes back is in time': [
        (4, False, []),
        (5, True, []),
        (9, False, []),
        (14, False, []),
        (15, False, ['client_gone']),
    ],
}


@pytest.mark.parametrize('looks', STORIES.values(), ids=STORIES)
def test_a_session_ends_once_nobody_listens_for_the_grace_time(looks):
    sessions = table()
    sessions.open(ask(), 0, MANY)
    for now_s, listening, ended in looks:
        assert reasons(sessions, now_s, listening=listening) == ended


def test_a_robot_that_is_heard_is_not_gone_though_nobody_seems_to_listen():
    sessions = table()
    sessions.open(ask(), 0, MANY)
    for now_s in range(1, 100, 4):
        sessions.record_activity('robot_1', now_s * S, 0)
        assert reasons(sessions, now_s + 3, listening=False) == []


def test_who_only_listens_is_idle_in_the_end():
    sessions = table()
    sessions.open(ask(), 0, MANY)
    sessions.record_activity('robot_1', 10 * S, 0)
    assert reasons(sessions, 70, listening=True) == []
    assert reasons(sessions, 70.1, listening=True) == ['session_idle']
    assert len(sessions) == 0


def test_each_robot_is_judged_by_its_own_topic():
    sessions = table()
    first = sessions.open(ask('robot_1', reply_topic='/one/action_chunk'), 0, MANY)
    second = sessions.open(ask('robot_2', reply_topic='/two/action_chunk'), 0, MANY)
    assert sessions.close_expired(6 * S, lambda topic: topic == '/two/action_chunk') == [
        (first, 'client_gone')
    ]
    assert list(sessions) == [second]


class SessionLife(RuleBasedStateMachine):
    """Robots come, speak, listen, go and come again; the table is a simple model's."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions, self.now_ns = table(), 0
        # name -> epoch, instance, heard, deaf since
        self.model: dict[str, list] = {}

    names = st.sampled_from(['a', 'b', 'c'])

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds):
        self.now_ns += seconds * S

    @rule(name=names, epoch=st.integers(0, 2), instance=st.integers(1, 2), limit=st.integers(1, 3))
    def open(self, name, epoch, instance, limit):
        known = self.model.get(name)
        same = known and known[:2] == [epoch, instance]
        in_use = known and known[1] != instance and self.now_ns - known[2] < RULES.grace_ns
        is_over = known and known[1] == instance and epoch < known[0]
        refused = in_use or is_over or (not known and len(self.model) >= limit)
        asked = ask(name, epoch, instance=instance)
        before = self.sessions.current(name)
        if refused:
            with pytest.raises(SessionRefused):
                self.sessions.open(asked, self.now_ns, limit)
            return
        session = self.sessions.open(asked, self.now_ns, limit)
        assert (session is before) == bool(same)
        self.model[name] = [epoch, instance, self.now_ns, self.now_ns]

    @rule(name=names)
    def speak(self, name):
        self.sessions.record_activity(name, self.now_ns, 0)
        if name in self.model:
            self.model[name][2] = self.now_ns

    @rule(name=names, epoch=st.integers(0, 2))
    def close(self, name, epoch):
        closed = self.sessions.close(name, epoch)
        expected = name in self.model and self.model[name][0] == epoch
        assert bool(closed) == expected
        if expected:
            del self.model[name]

    @precondition(lambda self: self.model)
    @rule(listening=st.booleans())
    def sweep(self, listening):
        expected = {}
        for name, entry in self.model.items():
            entry[3] = None if listening else self.now_ns if entry[3] is None else entry[3]
            silent_ns = self.now_ns - entry[2]
            deaf_ns = 0 if entry[3] is None else self.now_ns - entry[3]
            if silent_ns > RULES.idle_ns:
                expected[name] = 'session_idle'
            elif min(silent_ns, deaf_ns) > RULES.grace_ns:
                expected[name] = 'client_gone'
        ended = self.sessions.close_expired(self.now_ns, lambda _: listening)
        assert {session.request.client_id: reason for session, reason in ended} == expected
        self.model = {n: entry for n, entry in self.model.items() if n not in expected}

    @invariant()
    def each_robot_has_one_session_and_finds_it_by_its_epoch_alone(self):
        assert {s.request.client_id: s.request.session_epoch for s in self.sessions} == {
            name: entry[0] for name, entry in self.model.items()
        }
        for name, (epoch, *_) in self.model.items():
            assert self.sessions.find(name, epoch) is self.sessions.current(name)
            assert self.sessions.find(name, epoch + 1) is None
        assert set(self.sessions._activity) == set(self.model)


SessionLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSessionLife = SessionLife.TestCase
