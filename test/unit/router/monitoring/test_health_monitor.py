# SPDX-License-Identifier: Apache-2.0
"""What the router looks at again and again: robots that are gone, and verdicts."""

from __future__ import annotations

from types import SimpleNamespace

from diagnostic_msgs.msg import DiagnosticArray
import pytest
from support.replacing import replace
from support.router.router_core_rig import SECOND, TWO_SLOTS
from support.router.runtime_rig import RuntimeRig, status

from lerobot_serve.router.monitoring.change_detector import MAX_RATE_HZ
from lerobot_serve.router.monitoring.health_monitor import REASON_INTERVAL_NS
from lerobot_serve_interfaces.msg import CanaryState, ReplicaState, RouterState


@pytest.fixture
def rig(tmp_path):
    return RuntimeRig(tmp_path)


def nobody(topic: str) -> bool:
    return False


def test_a_robot_that_is_gone_is_counted_once_however_long_closing_takes(rig):
    robot = rig.robot()
    monitor = rig.monitor()
    monitor.poll_slowly(nobody)
    rig.now_ns += 10 * SECOND
    # the control thread is busy, and time continues
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


def lose_a_replica(rig: RuntimeRig) -> None:
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


def test_when_a_replica_becomes_ready_or_is_not_sessions_are_moved_with_the_next_poll(rig):
    monitor, rounds = rig.monitor(), []
    rig.core.is_open = True
    rig.core.session_manager.maintain_sessions = lambda: rounds.append(rig.now_ns)

    def poll() -> int:
        rig.now_ns += SECOND
        monitor.poll()
        return len(rig.of_kind(RouterState))

    rig.hear('/a2', active=False)
    before = poll()
    assert monitor._is_maintenance_queued
    monitor._maintain_sessions()
    rig.hear('/a2')
    assert poll() == before + 1
    assert monitor._is_maintenance_queued
    monitor._maintain_sessions()
    assert (len(rounds), poll()) == (2, before + 1)
    assert not monitor._is_maintenance_queued
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
    rig = RuntimeRig(tmp_path, **TWO_SLOTS, canary_plan=('50', '100'))
    monitor = rig.monitor()
    rig.core.is_open = True
    for _ in range(2):
        monitor.poll()
        rig.now_ns += SECOND
    assert rig.of_kind(CanaryState)[-1].state == CanaryState.RUNNING
    rig.core.canary.run_command('pause', 'kim@lab: lunch', rig.now_ns)
    monitor.poll()
    monitor.poll()
    (paused,) = (each for each in rig.of_kind(CanaryState) if each.state == CanaryState.PAUSED)
    assert 'kim@lab: lunch' in paused.text
    rig.close()


def test_a_reason_before_the_first_verdict_stands_alone(rig):
    for server in rig.core.replicas:
        rig.hear(server, active=False, text='no status yet')
    rig.now_ns += REASON_INTERVAL_NS
    rig.monitor().poll_slowly(nobody)
    assert [text.partition(': ')[0] for text in rig.warned] == ['slot a']
    rig.close()


def test_once_a_second_everything_is_told(rig):
    rig.monitor().poll_slowly(nobody)
    for kind in (RouterState, DiagnosticArray, CanaryState):
        assert len(rig.of_kind(kind)) == 1
    rig.close()


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
