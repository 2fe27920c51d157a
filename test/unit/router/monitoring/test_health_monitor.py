# SPDX-License-Identifier: Apache-2.0
"""What the router looks at again and again: robots that are gone, verdicts, and its own end."""

from __future__ import annotations

from dataclasses import replace
import threading
from types import SimpleNamespace

from diagnostic_msgs.msg import DiagnosticArray
import pytest
from support.router.dispatch_rig import request_bytes
from support.router.router_core_rig import RoutingRig, SECOND, TWO_SLOTS

from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.data_path.transport import Transport
from lerobot_serve.router.monitoring.change_detector import MAX_RATE_HZ
from lerobot_serve.router.monitoring.health_monitor import HealthMonitor, REASON_INTERVAL_NS
from lerobot_serve.router.runtime import RouterConnections, RouterRuntime
from lerobot_serve.router.thread_group import ThreadGroup
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.schema import Status
from lerobot_serve_interfaces.msg import CanaryState, ReplicaState, RouterState

LIMIT_S = 10.0


class Replicas:
    """Servers as ros.replica_clients has them; their thread only waits for its end."""

    def __init__(self) -> None:
        self.awake = threading.Event()
        self.there, self.two, self.closed = True, '', False
        self.gone: set[str] = set()
        self.on_reply = self.on_status = None

    def listen(self, on_reply, on_status) -> None:
        self.on_reply, self.on_status = on_reply, on_status

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.awake.wait(LIMIT_S)
            self.awake.clear()

    def wake(self) -> None:
        self.awake.set()

    def is_available(self, server: str) -> bool:
        return self.there and server not in self.gone

    def link_problem(self, server: str) -> str:
        return self.two

    def close(self) -> None:
        self.closed = True


class Rig(RoutingRig):
    """A router with its threads; what it publishes and warns of is kept."""

    def __init__(self, folder, **parameters: object) -> None:
        self.sent: list[bytes] = []
        super().__init__(folder, **parameters)
        self.topics: list[object] = self.published
        self.warned: list[str] = self.told
        self.threads: list[threading.Thread] = []
        self.behind, self.group = Replicas(), ThreadGroup(self.start)
        self.warned.clear()

    def make_transport(self) -> Transport:
        replies = SimpleNamespace(send=lambda topic, raw: self.sent.append(raw) or True)
        clients = {
            name: SimpleNamespace(send=lambda raw, name=name: self.outside.send(name, raw))
            for name in self.clients
        }
        return ReplicaTransport(clients, replies, self.drops)

    def routing(self) -> RouterRuntime:
        connections = RouterConnections(self.behind, None, self.topics.append)
        return RouterRuntime(self.core, connections, self.group, self.context)

    def start(self, name: str, target, wake) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def monitor(self) -> HealthMonitor:
        return HealthMonitor(self.core, self.behind, self.topics.append, self.context)

    def of_kind(self, kind: type) -> list:
        return [each for each in self.topics if isinstance(each, kind)]


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def nobody(topic: str) -> bool:
    return False


def test_a_robot_that_is_gone_is_counted_once_however_long_closing_takes(rig):
    robot = rig.robot()
    monitor = rig.monitor()
    monitor.poll_slowly(nobody)
    rig.now_ns += 10 * SECOND
    # the control thread is busy, and time goes on
    for _ in range(3):
        monitor.poll_slowly(nobody)
        rig.now_ns += SECOND
    assert rig.drops.counts() == {}
    rig.core.jobs.end()
    rig.core.jobs.run()
    assert rig.drops.counts()['client_gone'] == 1
    assert rig.core.table.sessions.find('robot', robot.request.session_epoch) is None
    said = [text for text in rig.warned if 'closed the session' in text]
    assert said == ["closed the session of 'robot': client_gone"]
    rig.close()


def test_who_is_missing_is_looked_for_by_one_job_at_a_time(rig):
    monitor = rig.monitor()
    for _ in range(5):
        monitor.poll_slowly(nobody)
    done = []
    rig.core.session_manager.maintain_sessions = lambda: done.append('looked')
    rig.core.jobs.put(lambda: monitor.poll_slowly(nobody))
    rig.core.jobs.put(rig.core.jobs.end)
    rig.core.jobs.end()
    rig.core.jobs.run()
    assert done == ['looked']
    rig.close()


def test_a_name_of_two_servers_is_the_reason_of_an_unavailable_replica(rig):
    monitor = rig.monitor()
    rig.behind.there, rig.behind.two = False, '2 servers have the name /a1'
    monitor.poll()
    assert {replica.text for replica in rig.core.replicas.values()} == {rig.behind.two}
    rig.behind.there, rig.behind.two = True, ''
    monitor.poll()
    assert not any('2 servers' in replica.text for replica in rig.core.replicas.values())


def test_a_verdict_is_said_when_it_changes(rig):
    monitor = rig.monitor()
    for _ in range(3):
        monitor.poll()
    assert not rig.topics
    rig.core.is_open = True
    for _ in range(3):
        monitor.poll()
    assert (rig.warned, rig.informed) == ([], ['healthy'])
    rig.slots['b'].health.mark_unhealthy('timeout', rig.now_ns)
    for _ in range(3):
        monitor.poll()
    assert rig.warned == ['slot_b_drained: slot b: unhealthy: timeout']
    assert [state.health for state in rig.of_kind(RouterState)] == ['healthy', 'slot_b_drained']
    rig.behind.there = False
    monitor.poll()
    assert rig.warned[-1].startswith('unavailable: slot a: /a1: server unavailable')
    assert rig.informed == ['healthy']
    rig.close()


def lose_a_replica(rig: Rig) -> None:
    rig.behind.is_available = lambda server: server != '/a1'


@pytest.mark.parametrize(
    'change',
    [
        lambda rig: rig.core.change_parameters(replace(rig.core.parameters, split_percent=80)),
        lambda rig: rig.hear('/a2', active=False, text='loads a policy'),
        lose_a_replica,
    ],
    ids=['split', 'text of a replica', 'loss of a replica beside another one'],
)
def test_a_change_is_published_with_the_next_poll_and_not_again(rig, change):
    monitor = rig.monitor()
    rig.core.is_open = True
    monitor.poll()
    rig.now_ns += SECOND
    change(rig)
    for _ in range(3):
        monitor.poll()
        rig.now_ns += SECOND
    assert [state.health for state in rig.of_kind(RouterState)] == ['healthy', 'healthy']
    rig.close()


def test_the_sessions_of_a_replica_that_becomes_ready_are_opened_with_the_next_poll(rig):
    monitor, rounds = rig.monitor(), []
    rig.core.is_open = True
    rig.core.session_manager.maintain_sessions = lambda: rounds.append(rig.now_ns)

    def poll() -> int:
        rig.now_ns += SECOND
        monitor.poll()
        return len(rig.of_kind(RouterState))

    rig.hear('/a2', active=False)
    before = poll()
    assert not monitor._is_maintenance_queued
    rig.hear('/a2')
    assert poll() == before + 1
    assert monitor._is_maintenance_queued
    monitor._maintain_sessions()
    assert (len(rounds), poll()) == (1, before + 1)
    rig.close()


def test_a_reason_that_changes_all_the_time_is_published_at_a_limited_rate(rig):
    monitor = rig.monitor()
    rig.core.is_open = True
    monitor.poll()
    for number in range(20):
        rig.now_ns += SECOND // 10
        rig.hear('/a2', active=False, text=f'loads {number} %')
        monitor.poll()
    assert len(rig.of_kind(RouterState)) == 1 + 2 * MAX_RATE_HZ
    rig.close()


def test_a_reason_that_changes_while_the_health_stays_is_logged_now_and_then(rig):
    monitor = rig.monitor()
    rig.core.is_open = True
    for server in rig.core.replicas:
        rig.hear(server, active=False, text='no status yet')
    monitor.poll()
    assert len(rig.warned) == 1 and 'no status yet' in rig.warned[0]
    for second in range(25):
        rig.now_ns += SECOND
        for server in rig.core.replicas:
            rig.hear(server, active=False, text=f'loads {second} %')
        monitor.poll()
        monitor.poll_slowly(nobody)
    said = rig.warned[1:]
    assert len(said) == 25 * SECOND // REASON_INTERVAL_NS
    assert 'loads 9 %' in said[0] and 'loads 19 %' in said[1]
    rig.now_ns += REASON_INTERVAL_NS
    monitor.poll_slowly(nobody)
    monitor.poll_slowly(nobody)
    assert 'loads 24 %' in rig.warned[3] and len(rig.warned) == 4
    rig.close()


def test_a_command_to_the_canary_is_published_with_the_next_poll(tmp_path):
    rig = Rig(tmp_path, **TWO_SLOTS, canary_plan=('50', '100'))
    monitor = rig.monitor()
    rig.core.is_open = True
    for _ in range(2):
        monitor.poll()
        rig.now_ns += SECOND
    assert rig.of_kind(CanaryState)[-1].state == CanaryState.RUNNING
    rig.core.run_canary_command('pause', 'kim@lab: lunch')
    monitor.poll()
    monitor.poll()
    (paused,) = (each for each in rig.of_kind(CanaryState) if each.state == CanaryState.PAUSED)
    assert 'kim@lab: lunch' in paused.text
    rig.close()


def test_once_a_second_everything_is_told(rig):
    rig.monitor().poll_slowly(nobody)
    for kind in (RouterState, DiagnosticArray, CanaryState):
        assert len(rig.of_kind(kind)) == 1
    rig.close()


def status(server: str, policy: str = 'act@2', slot: str = 'a') -> SimpleNamespace:
    return SimpleNamespace(
        policy=policy,
        slot=slot,
        state_class=1,
        state=2,
        ACTIVE=2,
        warmed_up=True,
        load=0.5,
        active_sessions=1,
        max_sessions=4,
        text='',
    )


def test_a_replica_whose_services_are_not_there_yet_is_waited_for(rig):
    routing = rig.routing()
    for server in rig.replicas:
        rig.behind.on_status(server, status(server))
    assert rig.core.has_all_replicas()
    # its status arrives before its services are matched
    rig.behind.gone.add('/a1')
    routing.monitor.poll()
    assert not rig.core.has_all_replicas()
    rig.behind.gone.clear()
    routing.monitor.poll()
    assert not rig.core.has_all_replicas()
    rig.behind.on_status('/a1', status('/a1'))
    assert rig.core.has_all_replicas()
    routing.close()
    rig.close()


def test_what_a_server_says_of_itself_is_learned_and_a_change_is_said(rig):
    routing = rig.routing()
    rig.behind.on_status('/a1', status('/a1', 'act@a'))
    assert not rig.warned
    for server in ('/a1', '/a2'):
        rig.behind.on_status(server, status(server))
    assert rig.warned[-1] == 'slot a: policy changed from act@a to act@2'
    assert rig.replicas['/a1'].report.load == 0.5
    routing.close()


def test_a_policy_that_is_learned_late_is_written_down(rig):
    written = []
    monitor = rig.monitor()
    rig.core.recorder = SimpleNamespace(
        policies=lambda slots: written.append({n: s.policy for n, s in slots.items()})
    )
    first, second = ({'a': rig.slots['a'].policy, 'b': policy} for policy in ('act@b', 'act@c'))
    rig.slots['b'].policy = ''
    monitor.on_status('/b1', status('/b1', 'act@b', 'b'))
    # not before the router begins: until then the slots find together
    assert written == []
    rig.slots['b'].policy = ''
    monitor.record_policies()
    for policy in ('act@b', 'act@b', 'act@c'):
        monitor.on_status('/b1', status('/b1', policy, 'b'))
    assert written[1:] == [first, second]
    rig.close()


# the router's end


def test_its_threads_end_and_everything_is_let_go(rig):
    routing = rig.routing()
    routing.begin()
    robot = rig.robot()
    assert rig.core.is_open
    routing.close()
    assert not any(thread.is_alive() for thread in rig.threads)
    assert sorted(thread.name for thread in rig.threads) == [
        'alarm',
        'control',
        'replies',
        'store',
    ]
    assert rig.behind.closed
    assert rig.core.table.sessions.current('robot') is None
    for name in robot.places['a'] + robot.places['b']:
        assert 'close' in rig.clients[name].calls
    # once more hurts nobody, and work comes too late
    routing.close()
    assert not rig.core.jobs.put(int)


def test_a_router_that_goes_away_refuses_and_says_so(rig):
    routing = rig.routing()
    raw = request_bytes('robot', 1, 'e')
    rig.core.on_request(raw)
    assert rig.drops.counts() == {'no_session': 1}
    routing.begin()
    rig.robot()
    rig.core.on_request(raw)
    (sent,) = rig.outside.sent
    assert sent[1] == raw
    flight = rig.core.table.in_flight.newest('robot')
    flight.end()
    routing.drain()
    assert (rig.core.is_open, rig.core.is_drained) == (False, True)
    rig.core.on_request(raw)
    chunk = wire_chunk.decode(rig.sent[-1])
    assert (chunk.status, chunk.header.seq) == (Status.DRAINING, 1)
    assert len(rig.outside.sent) == 1
    routing.begin()
    rig.core.on_request(raw)
    assert len(rig.outside.sent) == 2
    routing.close()


def test_a_late_answer_to_a_router_that_is_closed_hurts_nobody(rig):
    routing = rig.routing()
    routing.begin()
    routing.close()
    rig.behind.on_reply('/a1', b'')
    rig.behind.on_status('/a1', status('/a1'))
    assert rig.drops.counts()['encapsulation'] == 1


def test_a_folder_in_use_is_free_again_after_the_end(rig, tmp_path):
    rig.routing().close()
    again = Rig(tmp_path)
    assert isinstance(again.core, RouterCore)
    again.close()


def test_a_replica_that_comes_or_goes_is_published_at_once_though_its_slot_goes_on(rig):
    monitor, (lost, *others) = rig.monitor(), rig.core.replicas
    rig.core.is_open = True
    monitor.poll()
    health = monitor._health
    for gone in ({lost}, set()):
        rig.behind.gone = gone
        rig.now_ns += SECOND
        before = len(rig.of_kind(RouterState))
        # once each, not with the beat of the second
        for _ in range(3):
            monitor.poll()
        (state,) = rig.of_kind(RouterState)[before:]
        shown = {each.server: each.state for slot in state.slots for each in slot.replicas}
        # one that is back has to send a status first
        assert shown[lost] == ReplicaState.UNAVAILABLE
        assert all(shown[name] != ReplicaState.UNAVAILABLE for name in others)
        assert monitor._health == health
    rig.close()
