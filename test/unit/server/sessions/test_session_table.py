# SPDX-License-Identifier: Apache-2.0
"""Sessions: one for each robot, until it is gone or another one takes its place."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, RuleBasedStateMachine
import pytest
from support.replacing import replace
from support.server.session_rig import ask, RULES, S, table

from lerobot_serve.contract.limits import ID_LIMIT, SCHEMA_VERSION
from lerobot_serve.contract.names import session_name
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal, StateClass
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.sessions.session_table import SessionTable

MANY = 10


def content(sessions: SessionTable) -> tuple:
    presence = {
        name: (seen.last_request_ns, seen.no_listener_since_ns)
        for name, seen in sessions._activity.items()
    }
    return list(sessions), presence, sessions.rules


def refusal(
    sessions: SessionTable, asked: OpenSessionRequest, now_ns: int = 0, limit: int = MANY
) -> SessionRefused:
    """Return the refusal of `asked`, which must have changed nothing."""
    before = content(sessions)
    with pytest.raises(SessionRefused) as refused:
        sessions.open(asked, now_ns, limit)
    assert content(sessions) == before
    return refused.value


@pytest.mark.parametrize('epoch', [7, 8])
@pytest.mark.parametrize(
    ('wrong', 'code'),
    [
        ({'schema_version': SCHEMA_VERSION + 1}, Refusal.SCHEMA_TOO_NEW),
        ({'reply_topic': 'relative'}, Refusal.BAD_NAME),
        ({'state_names': ()}, Refusal.STATE_NAMES),
        ({'codec': 9}, Refusal.CODEC),
    ],
)
def test_what_does_not_fit_is_refused_and_ends_nothing(wrong, code, epoch):
    sessions = table()
    sessions.open(ask(), 0, MANY)
    assert refusal(sessions, ask(epoch=epoch, **wrong), 1).code == code
    assert refusal(sessions, ask('robot_2', **wrong), 1).code == code


def test_a_router_that_a_robot_has_left_does_not_end_its_session_at_another_one():
    sessions = table()
    left = ask(epoch=7, reply_topic='/router_1/replies/robot')
    sessions.open(left, 0, MANY)
    now = sessions.open(ask(epoch=8, reply_topic='/router_2/replies/robot'), S, MANY)
    # the first one keeps what it does not use alive
    assert refusal(sessions, left, 20 * S).code == Refusal.NAME_IN_USE
    assert list(sessions) == [now]


def test_a_session_keeps_what_was_agreed_on():
    sessions = table(pin_task=True)
    session = sessions.open(ask(fps=60.0), 0, MANY)
    assert (session.session_id, session.schema_version) == ('robot_1#00000007', SCHEMA_VERSION)
    assert (session.task, session.is_task_pinned) == ('fold the towel', True)
    assert [warning.count('60 Hz') for warning in session.warnings] == [1]


def test_a_session_takes_the_default_task():
    assert table().open(ask(), 0, MANY).task == 'fold the towel'
    session = table().open(ask(task='dance'), 0, MANY)
    assert (session.task, session.is_task_pinned) == ('dance', False)


def test_asking_again_is_being_heard():
    sessions = table()
    sessions.open(ask(), 0, MANY)
    sessions.open(ask(), 60 * S, MANY)
    assert sessions.close_expired(61 * S, lambda _: False) == []


def test_an_old_session_is_not_open_though_the_new_one_has_its_epoch():
    sessions = table()
    old = sessions.open(ask(), 0, MANY)
    new = sessions.open(ask(fps=29.0), 1, MANY)
    assert sessions.find('robot_1', 7) is new
    assert (sessions.is_open(old), sessions.is_open(new)) == (False, True)


def test_capacity_is_for_robots_not_for_asks():
    sessions = table()
    sessions.open(ask('robot_1'), 0, 2)
    sessions.open(ask('robot_2'), 0, 2)
    refused = refusal(sessions, ask('robot_3'), limit=2)
    assert refused.code == Refusal.CAPACITY
    for words in ('2 sessions are open', '2 can be served', 'use another server'):
        assert words in str(refused)
    assert sessions.open(ask('robot_2', epoch=8), 0, 2).request.session_epoch == 8
    assert sessions.open(ask('robot_3'), 0, 3)


def test_a_lower_limit_ends_no_session():
    sessions = table()
    for number in range(3):
        sessions.open(ask(f'robot_{number}'), 0, 3)
    assert refusal(sessions, ask('robot_3'), limit=1).code == Refusal.CAPACITY
    assert sessions.open(ask('robot_0', epoch=8), 0, 1)
    assert len(sessions) == 3


def test_a_policy_for_one_robot_refuses_the_second_and_names_the_first():
    sessions = table({'state_class': StateClass.EXCLUSIVE})
    sessions.open(ask('robot_1'), 0, MANY)
    refused = refusal(sessions, ask('robot_2'))
    assert refused.code == Refusal.EXCLUSIVE_IN_USE
    for words in ("in use by 'robot_1'", 'fake is exclusive', 'wait, or use another server'):
        assert words in str(refused)
    assert sessions.open(ask('robot_1', epoch=8), 0, MANY)
    sessions.close('robot_1', 8)
    assert sessions.open(ask('robot_2'), 0, MANY)


def test_a_second_robot_of_the_same_name_is_refused_while_the_first_is_heard():
    sessions = table()
    sessions.open(ask(instance=1), 0, MANY)
    second = ask(instance=2)
    sessions.record_activity('robot_1', 4 * S, 0)
    refused = refusal(sessions, second, 9 * S - 1)
    assert refused.code == Refusal.NAME_IN_USE
    for words in ("'robot_1'", '5.0 s ago', 'its own client_id', 'retry after 5 s'):
        assert words in str(refused)
    assert sessions.open(second, 9 * S, MANY).request.instance == 2


def test_changed_rules_leave_open_sessions_open():
    sessions = table()
    before = sessions.open(ask(), 0, MANY)
    sessions.apply_live_rules(replace(RULES, max_sessions=1, session_grace_s=0.0))
    assert list(sessions) == [before]
    assert sessions.rules == replace(RULES, max_sessions=1, session_grace_s=0.0)
    assert sessions.open(ask(instance=2), 0, MANY).request.instance == 2


def test_two_long_names_that_begin_alike_are_two_sessions():
    begin = 'ü' * 63
    ids = [session_name(begin + end, 7) for end in 'ab']
    assert ids[0] != ids[1]
    assert all(len(one.encode()) <= ID_LIMIT and one.startswith('ü' * 40) for one in ids)


def test_nobody_can_take_the_name_that_a_long_one_was_given():
    taken = session_name('a' * ID_LIMIT, 7)
    forged = {session_name(taken[:cut], 7) for cut in range(1, ID_LIMIT + 1)}
    assert taken not in forged


names = st.text(st.sampled_from('aü#~07'), min_size=1, max_size=6) | st.builds(
    lambda end: 'a' * 120 + end, st.text(st.sampled_from('a#~0'), max_size=8)
)
epochs = st.sampled_from([0, 7, 0x77, 2**32 - 1])


@given(names, epochs, names, epochs)
def test_each_robot_and_epoch_has_an_id_of_its_own(name, epoch, other_name, other_epoch):
    same = (name, epoch) == (other_name, other_epoch)
    first, second = session_name(name, epoch), session_name(other_name, other_epoch)
    assert (first == second) == same
    assert len(first.encode()) <= ID_LIMIT


def test_the_time_that_sessions_were_open_counts_within_the_window():
    sessions = table()
    for number, opened_s in enumerate((0, 6, 9)):
        sessions.open(ask(f'robot_{number}'), opened_s * S, MANY)
    assert sessions.total_open_s(10 * S, 5 * S) == 5 + 4 + 1
    sessions.close('robot_1', ask().session_epoch)
    assert sessions.total_open_s(10 * S, 5 * S) == 5 + 1


def test_one_process_does_not_take_all_sessions():
    sessions = table(max_sessions_per_process=2, max_sessions=MANY)
    for number in (1, 2):
        sessions.open(ask(f'name_{number}', instance=5), 0, MANY)
    refused = refusal(sessions, ask('name_3', instance=5), MANY)
    assert refused.code == Refusal.CAPACITY
    assert "the process of 'name_3' (instance 5) has 2 sessions" in str(refused)
    assert 'max_sessions_per_process' in str(refused)
    # another process has its own, and one that reopens takes none more
    sessions.open(ask('robot', instance=6), 0, MANY)
    sessions.open(ask('name_1', epoch=8, instance=5), 0, MANY)
    assert len(sessions) == 3


def test_one_process_does_not_take_over_all_sessions_of_silent_clients():
    sessions = table(max_sessions_per_process=2, max_sessions=MANY)
    for number in (1, 2, 3):
        sessions.open(ask(f'name_{number}', instance=number), 0, MANY)
    later_ns = int(60 * S)
    for number in (1, 2):
        sessions.open(ask(f'name_{number}', epoch=8, instance=5), later_ns, MANY)
    with pytest.raises(SessionRefused, match=r'instance 5\) has 2 sessions') as refused:
        sessions.open(ask('name_3', epoch=8, instance=5), later_ns, MANY)
    assert refused.value.code == Refusal.CAPACITY
    assert sessions.current('name_3').request.instance == 3


@pytest.mark.parametrize(('silent_s', 'taken'), [(0, True), (4.9, True), (5, False)])
def test_the_reply_topic_of_a_robot_that_is_heard_takes_no_chunks_of_another(silent_s, taken):
    sessions = table(max_sessions=MANY)
    robot = sessions.open(ask('robot'), 0, MANY)
    thief = ask('thief', instance=2, reply_topic=robot.request.reply_topic)
    now_ns = int(silent_s * S)
    if not taken:
        assert sessions.open(thief, now_ns, MANY)
        return
    with pytest.raises(SessionRefused, match="is used by 'robot'") as refused:
        sessions.open(thief, now_ns, MANY)
    assert refused.value.code == Refusal.BAD_NAME


def test_a_relay_holds_the_sessions_of_many_on_one_topic():
    sessions = table(max_sessions=MANY)
    for number in range(5):
        relayed = ask(f'robot_{number}', instance=number, reply_topic='/policy_router/replies/a')
        assert sessions.open(relayed, 0, MANY)


# sessions whose robot is gone end, and no others


def reasons(sessions, now_s: float, *, listening: bool) -> list[str]:
    return [reason for _, reason in sessions.close_expired(int(now_s * S), lambda _: listening)]


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
        in_use = known and known[1] != instance and self.now_ns - known[2] < RULES.session_grace_ns
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
            if silent_ns > RULES.session_idle_ns:
                expected[name] = 'session_idle'
            elif min(silent_ns, deaf_ns) > RULES.session_grace_ns:
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
