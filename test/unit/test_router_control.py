"""Sessions of robots at the replicas: opened, kept, filled, given up; and the counts of them."""

from __future__ import annotations

from types import SimpleNamespace

from dispatch_rig import ask_of, check_counts, episode_in, MS, SECOND, SLOTS
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, RuleBasedStateMachine
import pytest
from replica_rig import ControlRig, OPEN_TIMEOUT_S

from lerobot_serve.router.control import KEEP_ALIVE_NS
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import Refused

SINGLE = {'a': ('/a1',), 'b': ('/b1',)}
THREE = {'prod': ('/p1', '/p2', '/p3')}


@pytest.fixture
def make():
    """Return makers of rigs, whose threads end with the test."""
    made = []

    def a_rig(*arguments, **more) -> ControlRig:
        made.append(ControlRig(*arguments, **more))
        return made[-1]

    yield a_rig
    for rig in made:
        check_counts(rig.slots, rig.robots)
        rig.callers.close()


@pytest.fixture
def rig(make):
    return make()


def places_of(rig: ControlRig, name: str = 'robot') -> dict[str, tuple[str, ...]]:
    return rig.robots.current(name).places


# opening


def test_a_session_is_open_in_every_slot_with_one_that_stands_by(make):
    rig = make({'a': ('/a1', '/a2', '/a3'), 'b': ('/b1',)})
    opened = rig.control.open(ask_of())
    assert [len(each.places) for each in opened.values()] == [2, 1]
    assert opened['a'].reply.server == opened['a'].places[0]
    assert rig.sessions() == rig.places()


def test_robots_spread_over_the_replicas(make):
    rig = make({'prod': ('/p1', '/p2', '/p3', '/p4')}, standby=0)
    for number in range(16):
        rig.control.open(ask_of(f'robot-{number}'))
    assert [replica.robots for replica in rig.slots['prod']] == [4, 4, 4, 4]


def test_a_second_robot_of_that_name_is_refused_while_the_first_is_heard(rig):
    rig.control.open(ask_of())
    rig.now_ns += 4 * SECOND
    rig.request()
    rig.now_ns += 4 * SECOND
    with pytest.raises(Refused, match='another robot called') as refused:
        rig.control.open(ask_of(epoch=2, instance=2))
    assert refused.value.code == Refusal.NAME_IN_USE
    assert rig.robots.current('robot').ask.instance == 1
    rig.now_ns += 2 * SECOND
    rig.control.open(ask_of(epoch=2, instance=2))
    robot = rig.robots.current('robot')
    assert (robot.ask.instance, robot.slot, robot.flags) == (2, '', 0)
    assert rig.sessions() == rig.places()


@pytest.mark.parametrize('server', ['/a1', '/a2', '/b1', '/b2'])
def test_a_robot_that_does_not_fit_is_refused_and_nothing_stays_open(rig, server):
    rig.clients[server].refuses = Refusal.ACTION_NAMES
    with pytest.raises(Refused, match=f'slot {server[1]} \\({server}\\)') as refused:
        rig.control.open(ask_of())
    assert refused.value.code == Refusal.ACTION_NAMES
    assert len(rig.robots) == 0
    assert not any(rig.sessions().values())


@pytest.mark.parametrize('how', ['capacity', 'draining', 'hangs', 'away', 'not wired'])
def test_a_slot_that_is_not_to_be_had_is_done_without_and_filled_later(make, how):
    rig = make(SINGLE)
    client = rig.clients['/b1']
    client.refuses = {'capacity': Refusal.CAPACITY, 'draining': Refusal.DRAINING}.get(how)
    client.hangs, client.wired = how == 'hangs', how != 'not wired'
    rig.note_there('/b1', how != 'away')
    opened = rig.control.open(ask_of())
    assert places_of(rig) == {'a': ('/a1',)}
    assert 'slot b' in str(opened['b'].refused)
    assert rig.sessions() == rig.places()
    rig.request(episode=episode_in('b'))
    assert rig.servers == ['/a1']
    rig.look_until_probed()
    assert places_of(rig)['a'] == ('/a1',)
    assert not places_of(rig).get('b')
    client.restart()
    rig.note_there('/b1', True)
    rig.look_until_probed()
    assert places_of(rig) == {'a': ('/a1',), 'b': ('/b1',)}
    rig.request(episode=episode_in('b', 1))
    assert rig.servers == ['/b1']


def test_where_no_slot_is_to_be_had_the_robot_is_told_why(make):
    rig = make(SINGLE)
    rig.clients['/a1'].refuses = Refusal.CAPACITY
    rig.note_there('/b1', False)
    with pytest.raises(Refused, match=r'slot a .*CAPACITY; slot b: /b1: it has gone') as refused:
        rig.control.open(ask_of())
    assert refused.value.code == Refusal.CAPACITY
    assert not any(rig.sessions().values())


def test_a_full_replica_is_passed_over(make):
    rig = make(THREE)
    rig.clients['/p1'].refuses = Refusal.CAPACITY
    rig.control.open(ask_of())
    assert places_of(rig) == {'prod': ('/p2', '/p3')}


def test_a_hanging_replica_delays_robots_by_its_timeout_once(make):
    rig = make(THREE)
    hung = rig.clients['/p1']
    hung.hangs = True
    for number in range(30):
        rig.control.open(ask_of(f'robot-{number}'))
        assert places_of(rig, f'robot-{number}') in (
            {'prod': ('/p2', '/p3')},
            {'prod': ('/p3', '/p2')},
        )
    assert hung.waited_s == OPEN_TIMEOUT_S
    for number in range(30):
        rig.control.close(f'robot-{number}', 1)
    assert hung.waited_s == OPEN_TIMEOUT_S
    assert rig.drop('open_unreachable') == 0
    # probes keep nobody waiting
    hung.hangs = False
    rig.look_until_probed()
    rig.control.open(ask_of())
    assert hung.sessions


def test_a_hanging_replica_delays_the_end_of_sessions_by_its_timeout_once(rig):
    for number in range(10):
        rig.control.open(ask_of(f'robot-{number}'))
    rig.clients['/a1'].hangs = True
    for number in range(10):
        rig.control.close(f'robot-{number}', 1)
    assert rig.clients['/a1'].calls.count('close') == 1
    assert rig.drop('close_unreachable') == 10


def test_one_that_failed_lately_gets_a_session_only_where_there_is_no_other(make):
    rig = make(THREE)
    rig.replicas['/p1'].health.drain('x', rig.now_ns)
    rig.control.open(ask_of())
    assert places_of(rig) == {'prod': ('/p2', '/p3')}
    alone = make({'prod': ('/p1',)})
    alone.replicas['/p1'].health.drain('x', alone.now_ns)
    alone.control.open(ask_of())
    assert places_of(alone) == {'prod': ('/p1',)}


def test_a_slot_whose_policy_is_for_other_robots_refuses_nobody(make):
    rig = make(SINGLE)
    rig.clients['/b1'].action_names = ('grip',)
    rig.clients['/b1'].refuses = Refusal.ACTION_NAMES
    rig.look()
    assert 'does not fit slot a: actions' in rig.slots['b'].text
    opened = rig.control.open(ask_of())
    assert places_of(rig) == {'a': ('/a1',)}
    assert 'does not fit slot a' in str(opened['b'].refused)
    rig.look()
    assert rig.clients['/b1'].calls.count('open') == 0
    # another policy in its place
    rig.clients['/b1'].restart()
    rig.clients['/b1'].action_names = ('x', 'y')
    rig.learn('/b1', 'b@2')
    rig.look()
    rig.look()
    assert places_of(rig) == {'a': ('/a1',), 'b': ('/b1',)}


# the same robot again


def test_a_new_session_takes_the_place_of_the_old_one(make):
    rig = make(THREE, standby=0)
    rig.control.open(ask_of())
    (old,) = places_of(rig)['prod']
    rig.replicas[old].health.drain('x', rig.now_ns)
    rig.request()
    rig.control.open(ask_of(epoch=2))
    assert rig.drop('session_over') == 1
    assert places_of(rig)['prod'] != (old,)
    assert rig.sessions() == rig.places()
    assert len(rig.dispatcher.flights) == 0
    rig.request(epoch=1)
    assert rig.drop('no_session') == 1


def test_the_same_ask_twice_is_one_session_and_what_is_under_way_goes_on(rig):
    rig.control.open(ask_of())
    raw = rig.request(episode=episode_in('a'))
    ((server, _),) = rig.outside.sent
    robot = rig.robots.current('robot')
    rig.control.open(ask_of())
    assert rig.robots.current('robot') is robot
    rig.answer(server, raw)
    assert len(rig.replies) == 1
    assert rig.drop('session_over') == 0
    assert rig.sessions() == rig.places()


def test_an_answer_to_the_session_before_reaches_nobody(rig):
    rig.control.open(ask_of())
    raw = rig.request(episode=episode_in('a'))
    ((server, _),) = rig.outside.sent
    rig.control.open(ask_of(epoch=2))
    rig.answer(server, raw)
    assert (rig.replies, rig.drop('late_answer')) == ([], 1)
    rig.advance(10 * SECOND)
    assert rig.replicas[server].health.failures == 0


def test_an_episode_that_ended_is_waited_for_by_nobody(rig):
    rig.control.open(ask_of())
    rig.request(episode=episode_in('a'))
    reset = SimpleNamespace(client_id='robot', session_epoch=1, episode=1)
    assert rig.control.reset(reset) == []
    assert rig.drop('episode_over') == 1
    assert all(client.resets == [reset] for client in rig.clients.values())
    rig.advance(10 * SECOND)
    assert rig.drop('timeout') == 0
    assert all(replica.health.failures == 0 for replica in rig.replicas.values())
    # the first request of the new one may come before the word that it has begun
    rig.request(episode=episode_in('a', 1), number=2)
    assert rig.control.reset(SimpleNamespace(**{**vars(reset), 'episode': 2})) == []
    assert len(rig.dispatcher.flights) == 1


def test_a_reset_of_nobody_and_one_that_does_not_arrive_are_said(rig):
    reset = SimpleNamespace(client_id='robot', session_epoch=1, episode=1)
    assert 'has no session of epoch 1' in rig.control.reset(reset)[0]
    rig.control.open(ask_of())
    rig.clients['/b1'].hangs = True
    (text,) = rig.control.reset(reset)
    assert text == '/b1: /b1 did not answer within 1 s'


# later


def test_a_lost_session_is_opened_again(rig):
    rig.control.open(ask_of())
    robot = rig.robots.current('robot')
    for client in rig.clients.values():
        client.restart()
    for server in rig.replicas:
        rig.control.reopen(robot, server)
    assert rig.sessions() == rig.places()
    assert places_of(rig) == SLOTS


def test_a_session_that_cannot_be_opened_again_is_given_up(rig):
    rig.control.open(ask_of())
    rig.clients['/a1'].refuses = Refusal.DRAINING
    rig.control.reopen(rig.robots.current('robot'), '/a1')
    assert places_of(rig)['a'] == ('/a2',)
    assert rig.drop('reopen_failed') == 1


def test_nothing_is_opened_for_who_is_gone_or_was_given_up(rig):
    rig.control.open(ask_of())
    robot = rig.robots.current('robot')
    rig.clients['/a1'].refuses = Refusal.DRAINING
    rig.control.reopen(robot, '/a1')
    rig.clients['/a1'].restart()
    calls = len(rig.clients['/a1'].calls)
    rig.control.reopen(robot, '/a1')
    rig.control.close('robot', 1)
    rig.control.reopen(robot, '/a2')
    assert len(rig.clients['/a1'].calls) == calls
    assert not any(rig.sessions().values())
    assert rig.control.close('robot', 1) is None


def test_the_place_of_one_that_went_is_taken_by_another(make):
    rig = make(THREE)
    rig.control.open(ask_of())
    first, second = places_of(rig)['prod']
    rig.note_there(first, False)
    rig.look()
    third = next(name for name in rig.replicas if name not in (first, second))
    assert places_of(rig)['prod'] == (second, third)
    assert rig.replicas[first].sessions == 0


def test_a_place_that_is_filled_leaves_first_who_was_put_first_meanwhile(make):
    rig = make(THREE, standby=2)
    rig.note_there('/p3', False)
    rig.control.open(ask_of())
    rig.note_there('/p3', True)
    robot = rig.robots.current('robot')

    def reorder(timeout_s: float) -> bool:
        # what the dispatcher may do while a session is being opened
        with rig.dispatcher.lock:
            first, second = robot.places['prod']
            robot.places = {'prod': (second, first)}
            rig.replicas[first].robots -= 1
            rig.replicas[second].robots += 1
        return True

    before = robot.places['prod']
    rig.clients['/p3'].is_wired = reorder
    rig.look()
    assert robot.places['prod'] == (*before[::-1], '/p3')


def test_sessions_that_are_not_used_are_kept_alive(rig):
    rig.control.open(ask_of())
    rig.look()
    for client in rig.clients.values():
        client.calls.clear()
    rig.advance(KEEP_ALIVE_NS + SECOND)
    rig.round_trip(episode=episode_in('a'))
    (used,) = {server for server, _ in rig.outside.sent}
    rig.look()
    kept = [name for name, client in rig.clients.items() if client.calls == ['open']]
    assert sorted(kept) == sorted(rig.replicas.keys() - {used})
    rig.look()
    assert all(len(client.calls) <= 1 for client in rig.clients.values())


def test_one_that_nobody_has_a_session_with_is_tried_by_a_call(make):
    rig = make(THREE)
    rig.control.open(ask_of())
    alone = next(r for r in rig.replicas.values() if not r.sessions)
    alone.health.drain('it has fallen silent', rig.now_ns)
    rig.clients[alone.name].hangs = True
    rig.advance(3 * SECOND)
    rig.look()
    assert not alone.is_ready
    rig.clients[alone.name].hangs = False
    rig.advance(10 * SECOND)
    rig.look_until_probed()
    rig.advance(10 * SECOND)
    rig.look()
    assert alone.is_ready
    assert f'{alone.name} answers again' in rig.told


def test_a_robot_that_one_policy_does_not_take_is_asked_of_it_once(make):
    rig = make(SINGLE)
    rig.note_there('/b1', False)
    rig.control.open(ask_of())
    rig.note_there('/b1', True)
    rig.clients['/b1'].refuses = Refusal.FPS
    for _ in range(5):
        rig.look()
    assert rig.clients['/b1'].calls.count('open') == 1
    assert rig.drop('slot_refused') == 1
    assert any("'robot' gets no episodes of slot b" in text for text in rig.told)
    rig.clients['/b1'].restart()
    rig.learn('/b1', 'b@2')
    rig.look()
    assert places_of(rig)['b'] == ('/b1',)


class Sessions(RuleBasedStateMachine):
    """Whatever servers do: counts, and what servers have, are what the router thinks."""

    names = st.sampled_from(('r1', 'r2', 'r3'))
    servers = st.sampled_from(('/a1', '/a2', '/b1', '/b2'))

    def __init__(self) -> None:
        super().__init__()
        self.rig = ControlRig()
        self.epochs = dict.fromkeys(('r1', 'r2', 'r3'), 1)

    @rule(name=names, newer=st.booleans(), instance=st.sampled_from((1, 1, 2)))
    def opens(self, name, newer, instance):
        self.epochs[name] += newer
        ask = ask_of(name, self.epochs[name], instance)
        had = self.rig.robots.current(name)
        try:
            self.rig.control.open(ask)
        except Refused:
            assert self.rig.robots.current(name) is had
        else:
            assert self.rig.robots.current(name).ask == ask

    @rule(name=names)
    def closes(self, name):
        self.rig.control.close(name, self.epochs[name])

    @rule(name=names, slot=st.sampled_from('ab'), answers=st.booleans())
    def asks(self, name, slot, answers):
        raw = self.rig.request(name, episode_in(slot), epoch=self.epochs[name])
        for server in self.rig.servers:
            if answers:
                self.rig.answer(server, raw)
        self.rig.forget()

    @rule(name=names, server=servers)
    def reopens(self, name, server):
        robot = self.rig.robots.current(name)
        if robot:
            self.rig.control.reopen(robot, server)

    @rule(server=servers, mood=st.sampled_from(('well', 'hangs', 'full', 'leaves', 'misfit')))
    def feels(self, server, mood):
        client = self.rig.clients[server]
        client.hangs = mood == 'hangs'
        refusals = {'full': Refusal.CAPACITY, 'leaves': Refusal.DRAINING, 'misfit': Refusal.FPS}
        client.refuses = refusals.get(mood)

    @rule(server=servers)
    def restarts(self, server):
        self.rig.clients[server].restart()

    @rule(server=servers, is_there=st.booleans())
    def comes_or_goes(self, server, is_there):
        self.rig.note_there(server, is_there)

    @rule(server=servers)
    def is_suspect(self, server):
        self.rig.replicas[server].health.drain('x', self.rig.now_ns)

    @rule(ns=st.sampled_from((MS, SECOND, 20 * SECOND)))
    def time_passes(self, ns):
        self.rig.advance(ns)
        self.rig.look_until_probed()

    @invariant()
    def counts_are_what_places_say(self):
        check_counts(self.rig.slots, self.rig.robots)

    @invariant()
    def nobody_has_two_places_at_one_server(self):
        for robot in self.rig.robots:
            for servers in robot.places.values():
                assert len(set(servers)) == len(servers) <= 2

    def teardown(self):
        """With all of them well again, each robot gets what it needs, and all ends with it."""
        rig = self.rig
        try:
            for server, client in rig.clients.items():
                client.hangs, client.refuses = False, None
                rig.note_there(server, True)
                rig.replicas[server].health.restore()
            for robot in rig.robots:
                robot.refused.clear()
            for _ in range(4):
                rig.look_until_probed()
            assert all(len(s) == 2 for r in rig.robots for s in r.places.values())
            assert all(len(robot.places) == 2 for robot in rig.robots)
            for name, epoch in self.epochs.items():
                rig.control.close(name, epoch)
        finally:
            rig.callers.close()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=40, stateful_step_count=30)
