# SPDX-License-Identifier: Apache-2.0
"""A router's transitions, its beginning and its end, and the disk that it remembers on."""

from __future__ import annotations

from pathlib import Path
import signal
import threading

from msgspec.structs import replace
import pytest
from support.nodes.router_manager import assert_well_ended, Manager
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ServerStatus

pytestmark = pytest.mark.long

CYCLES = 6


@pytest.fixture
def manager(router_rig) -> Manager:
    return Manager(router_rig)


def refusal(rig, name: str = 'early') -> SessionRefused:
    """Return how a new session is refused."""
    client = SmallClient(rig.node, '/policy_router', name, cameras=())
    with pytest.raises(SessionRefused) as refused:
        client._sessions.open(client.ask, 5.0)
    return refused.value


@pytest.mark.slow
def test_a_manager_takes_it_through_its_transitions(router_rig, manager):
    for name, slot in (('a', 'a'), ('b', 'b'), ('other', 'a')):
        router_rig.server(name, slot)
    router_rig.router(slot_a=['nobody'], slot_b=['b'], autostart=False)
    assert manager.state == 'unconfigured'
    assert (refusal(router_rig).code, manager.status().policy) == (Refusal.NOT_READY, '')
    assert 'configure the node' in str(refusal(router_rig))
    assert not router_rig.set(slot_a=['/a/policy_server'])
    manager.changes('configure')
    assert 'while the node is configured' in router_rig.set(slot_a=['/other/policy_server'])
    assert (refusal(router_rig).code, manager.state) == (Refusal.NOT_READY, 'inactive')
    manager.changes('activate')
    client = router_rig.robot()
    assert client.round_trip(episode_id=router_rig.episode('a')).slot == 'a'

    manager.changes('deactivate')
    assert refusal(router_rig).code == Refusal.DRAINING
    chunk = client.round_trip(episode_id=router_rig.episode('a'))
    assert (chunk.status, chunk.episode_id) == (Status.DRAINING, router_rig.episode('a'))
    assert 'draining' in chunk.status_text
    drops = manager.drops()
    assert (drops['draining'], drops['refused_draining']) == (1, 1)
    assert manager.status().state == ServerStatus.INACTIVE
    manager.changes('activate')
    # a pause keeps the sessions
    assert client.round_trip(episode_id=router_rig.episode('a')).status == Status.OK

    manager.changes('deactivate', 'cleanup')
    assert (manager.sessions_at('a'), manager.sessions_at('b')) == (0, 0)
    router_rig.wait(lambda: not reply_publishers(router_rig), 'nobody answers robots any more')
    client.request()
    router_rig.wait(lambda: manager.drops().get('no_session'), 'a request that nobody wanted')
    assert not router_rig.set(slot_a=['/other/policy_server'])
    manager.changes('configure', 'activate')
    client.open()
    chunk = client.round_trip(episode_id=router_rig.episode('a', salt='new'))
    assert (chunk.slot, chunk.status) == ('a', Status.OK)
    decided = router_rig.wait_for_decision(router_rig.episode('a', salt='new'))
    assert decided.server == '/other/policy_server'


def reply_publishers(rig) -> int:
    return rig.node.count_publishers('/tester/action_chunk')


def test_what_is_under_way_is_answered_before_it_is_inactive(router_rig, manager):
    router_rig.steering('a').turns.close_gate()
    router_rig.server('a', 'prod')
    router_rig.router(slot_prod=['a'], reply_timeout_s=20.0)
    states: list[int] = []
    router_rig.node.create_subscription(
        ServerStatus, '/policy_router/status', lambda told: states.append(told.state), qos.STATE
    )
    client = router_rig.robot()
    seq = client.request()
    router_rig.wait(lambda: router_rig.steering('a').events('predict'), 'the policy is asked')
    manager.wait_for('active')
    going = threading.Thread(target=manager.changes, args=('deactivate', 'cleanup'))
    going.start()
    router_rig.wait(lambda: states[-1:] == [ServerStatus.DRAINING], 'it drains')
    router_rig.steering('a').turns.let()
    going.join()
    chunk = client.take()
    assert (chunk.header.seq, chunk.status) == (seq, Status.OK)
    # one that is not answered in time keeps nobody from going
    manager.changes('configure', 'activate')
    client.ask = replace(client.ask, session_epoch=2)
    client.open()
    client.request()
    asked = router_rig.steering('a').events
    router_rig.wait(lambda: len(asked('predict')) == 2, 'the policy is asked again')
    manager.changes('deactivate', 'cleanup')
    assert manager.drops()['session_over'] == 1


@pytest.mark.slow
def test_six_times_around_leaves_nothing_behind(router_rig, manager):
    router_rig.server('a', 'a')
    router_rig.server('b', 'b', options='&noise=0.1')
    router_rig.server('shadow', 'a', options='&offset=1')
    router_rig.router(
        slot_a=['a'], slot_b=['b'], autostart=False, shadow_server='/shadow/policy_server'
    )
    client = SmallClient(router_rig.node, '/policy_router', cameras=())

    def cycle(number: int) -> tuple[int, int]:
        manager.changes('configure', 'activate')
        client.ask = replace(client.ask, session_epoch=number)
        client.open()
        for slot in 'aabb':
            chunk = client.round_trip(episode_id=router_rig.episode(slot, salt=number))
            assert chunk.status == Status.OK
        manager.changes('deactivate', 'cleanup')
        return len(manager.threads()), manager.files()

    # it opens its ports and those of its peers once, some time after its start
    router_rig.wait(manager.watches_ports, 'the router watches its ports')
    seen = [cycle(number) for number in range(1, CYCLES + 1)]
    # one of either that stayed with each cycle would be more than what DDS has now and then
    middle = CYCLES // 2
    for counts in zip(*seen, strict=True):
        assert counts[-1] < counts[middle - 1] + middle, seen
    assert manager.sessions_at('shadow') == 0
    assert 'Traceback' not in router_rig.log('router')


@pytest.mark.slow
def test_it_ends_well_at_any_time(router_rig, manager):
    """Several at once, each with its own moment and its own signal."""
    router_rig.server('a', 'prod')
    started = {}
    known, unknown = "['/a/policy_server']", "['/nobody/policy_server']"
    for name, servers, more in (
        ('first', known, {}),
        ('settling', unknown, {'discovery_timeout_s': 60.0}),
        ('degraded', unknown, {'discovery_timeout_s': 0.0}),
        ('idle', known, {'autostart': False}),
        ('core', known, {}),
    ):
        started[name] = router_rig.fleet.start(
            name, 'policy_router', namespace=f'/{name}', slot_prod=servers, **more
        )
    # as soon as it is more than an interpreter
    router_rig.wait(lambda: holds_signals_back(started['first'].pid), 'its first line')
    started['first'].send_signal(signal.SIGTERM)
    client = SmallClient(router_rig.node, '/core/policy_router', 'busy', cameras=())
    client.open()
    assert client.round_trip().status == Status.OK
    assert manager.sessions_at('a') == 1
    for name in ('settling', 'degraded', 'idle'):
        service = f'/{name}/policy_router/get_status'
        router_rig.wait(lambda s=service: router_rig.node.count_services(s), f'{name} is there')
    for number, (name, process) in enumerate(started.items()):
        if name != 'first':
            client.request()
            process.send_signal((signal.SIGINT, signal.SIGTERM)[number % 2])
    for name, process in started.items():
        assert_well_ended(router_rig, name, process)
    # it said goodbye
    assert manager.sessions_at('a') == 0


def holds_signals_back(pid: int) -> bool:
    lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    blocked = next(line for line in lines if line.startswith('SigBlk'))
    return bool(int(blocked.split()[1], 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.slow
def test_servers_that_hang_do_not_keep_it_from_ending(router_rig):
    router_rig.slots(standby_replicas=0, reply_timeout_s=30.0)
    client = router_rig.robot()
    assert client.round_trip().status == Status.OK
    for name in ('a', 'b'):
        router_rig.hang(name)
    # one is waiting for an answer, another one for a session
    client.request()
    other = SmallClient(router_rig.node, '/policy_router', 'other', cameras=())
    with pytest.raises((SessionRefused, ServerUnreachable)):
        other._sessions.open(other.ask, 0.3)
    process = router_rig.fleet.processes['router']
    process.send_signal(signal.SIGINT)
    assert_well_ended(router_rig, 'router', process)


# the folder
