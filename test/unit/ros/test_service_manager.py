# SPDX-License-Identifier: Apache-2.0
"""Reports to a service manager, as sd_notify(3) describes them, and which threads stand still."""

from __future__ import annotations

from itertools import product
import os
import socket

import pytest

from lerobot_serve.ros.process.service_manager import (
    ALIVE,
    Heartbeats,
    READY,
    ServiceManager,
    STILL_LEAST_S,
)

SECOND = 10**9


@pytest.fixture
def manager(tmp_path):
    """A socket as systemd has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / 'notify'))
        receiver.settimeout(5)
        yield receiver


def environment(receiver: socket.socket, **more: str) -> dict[str, str]:
    return {'NOTIFY_SOCKET': receiver.getsockname(), 'PATH': '/bin', **more}


def test_a_state_is_one_datagram(manager):
    service = ServiceManager(environment(manager))
    assert service.notify(READY) and service.notify(ALIVE)
    assert [manager.recv(100), manager.recv(100)] == [b'READY=1', b'WATCHDOG=1']


def test_a_name_without_a_file_begins_with_an_at():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f'lerobot_serve_{os.getpid()}'
        receiver.bind(f'\0{name}')
        receiver.settimeout(5)
        assert ServiceManager({'NOTIFY_SOCKET': f'@{name}'}).notify(READY)
        assert receiver.recv(100) == b'READY=1'


def test_children_do_not_inherit_the_variables(manager):
    given = environment(manager, WATCHDOG_USEC='3000000', WATCHDOG_PID=str(os.getpid()))
    assert ServiceManager(given).watchdog_s == 3.0
    assert given == {'PATH': '/bin'}


OWN = 'own'
PROCESSES = {'': 3.0, OWN: 3.0, '1': 0.0, 'x': 0.0}
TIMES = {'3000000': 1.0, '': 0.0, '-1': 0.0, 'soon': 0.0, '0': 0.0}


@pytest.mark.parametrize('process, time_us', product(PROCESSES, TIMES))
def test_a_watchdog_is_meant_for_this_process_or_there_is_none(manager, process, time_us):
    number = str(os.getpid()) if process == OWN else process
    given = environment(manager, WATCHDOG_USEC=time_us, WATCHDOG_PID=number)
    service = ServiceManager(given)
    assert service.watchdog_s == PROCESSES[process] * TIMES[time_us]
    assert service.report_period_s == pytest.approx(service.watchdog_s / 3)


def test_without_a_manager_nothing_is_sent():
    service = ServiceManager({'WATCHDOG_USEC': '3000000'})
    assert not service.notify(READY) and service.watchdog_s == 0.0


def test_a_manager_that_has_gone_or_does_not_read_blocks_nothing(tmp_path, manager):
    assert not ServiceManager({'NOTIFY_SOCKET': str(tmp_path / 'none')}).notify(READY)
    service = ServiceManager(environment(manager))
    sent = [service.notify(ALIVE) for _ in range(2000)]
    assert sent[0] and not sent[-1]


def test_a_thread_stands_still_when_its_counter_does_not_grow():
    counts = {'tick': 0, 'executor': 0}
    beats = Heartbeats(5.0)
    for name in counts:
        beats.add(name, lambda name=name: counts[name])
    assert beats.still(0) == []
    counts['executor'] += 1
    assert beats.still(4 * SECOND) == []
    counts['executor'] += 1
    assert beats.still(5 * SECOND) == ['tick']
    assert beats.still(10 * SECOND) == ['tick', 'executor']
    # it continues
    counts['tick'] += 1
    assert beats.still(11 * SECOND) == ['executor']
    assert beats.still(16 * SECOND) == ['tick', 'executor']


def test_a_thread_that_has_just_been_added_does_not_stand_still():
    beats = Heartbeats(5.0)
    assert beats.still(0) == []
    beats.add('tick', lambda: 7)
    assert beats.still(100 * SECOND) == []
    assert beats.still(105 * SECOND) == ['tick']


def test_a_short_watchdog_does_not_take_an_idle_executor_for_one_that_stands_still():
    beats, spins = Heartbeats(0.3), [0]
    beats.add('executor', lambda: spins[0])
    for tenth in range(100):
        # it wakes once a second
        spins[0] = tenth // 10
        assert beats.still(tenth * SECOND // 10) == []
    assert STILL_LEAST_S > 2.0
