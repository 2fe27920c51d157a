# SPDX-License-Identifier: Apache-2.0
"""A middleware that has locked itself up is found by what the kernel shows of its threads."""

from __future__ import annotations

from pathlib import Path
import threading

from hypothesis import given, strategies
import pytest
from support.middleware.locked_timer import LockedTimer
from support.waiting import wait_until

from lerobot_serve.ros.process import event_threads
from lerobot_serve.ros.process.event_threads import EventThreads, STUCK_LOOKS, waits_for_lock

# seen at a router over Fast DDS 2.14 that had locked itself up, and at one that had nothing to do
STUCK = '202 0x55a8749bbae0 0x80 0x2 0x0 0x0 0x0 0x7fd80d799cf8 0x7fd8256a412b'
IDLE = '202 0x5581a0c5b7d0 0x189 0x0 0x7f3a1c7fbe90 0x0 0xffffffff 0x7f3a1c7fbd60 0x7f3a2cf2'


@pytest.fixture(autouse=True)
def on_x86(monkeypatch):
    monkeypatch.setattr(event_threads, 'FUTEX', 202)


class Kernel:
    """The folder of the threads of a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.turns = folder, 0

    def show(self, call: str, name: str = 'dds.ev.0', *, runs: bool = False) -> None:
        self.turns += runs
        task = self.folder / '17'
        task.mkdir(exist_ok=True)
        (task / 'comm').write_text(f'{name}\n')
        (task / 'syscall').write_text(f'{call}\n')
        (task / 'status').write_text(
            f'Name:\t{name}\nvoluntary_ctxt_switches:\t{self.turns}\n'
            'nonvoluntary_ctxt_switches:\t3\n'
        )


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


def looks(threads: EventThreads, count: int) -> list[str]:
    return [threads.find_stuck() for _ in range(count)]


def test_one_that_waits_for_a_lock_is_found_after_some_looks(kernel):
    kernel.show(STUCK)
    found = looks(EventThreads(kernel.folder), STUCK_LOOKS + 2)
    # the first look only learns how often it has run
    assert found == [*[''] * STUCK_LOOKS, 'dds.ev.0', 'dds.ev.0']


@pytest.mark.parametrize(
    ('call', 'name', 'runs'),
    [
        (IDLE, 'dds.ev.0', False),
        (STUCK, 'dds.ev.0', True),
        (STUCK, 'dds.asyn.0.0', False),
        ('running', 'dds.ev.0', False),
        ('', 'dds.ev.0', False),
        ('202 0x1 0x80', 'dds.ev.0', False),
    ],
    ids=['has nothing to do', 'runs now and then', 'another', 'runs', 'ended', 'cut'],
)
def test_others_are_not_taken_for_it(kernel, call: str, name: str, runs: bool):
    threads = EventThreads(kernel.folder)
    for _ in range(3 * STUCK_LOOKS):
        kernel.show(call, name, runs=runs)
        assert not threads.find_stuck()


def test_one_that_goes_on_counts_from_the_start(kernel):
    threads = EventThreads(kernel.folder)
    kernel.show(STUCK)
    looks(threads, STUCK_LOOKS)
    kernel.show(IDLE, runs=True)
    assert not any(looks(threads, STUCK_LOOKS))
    kernel.show(STUCK)
    assert not any(looks(threads, STUCK_LOOKS - 1))


def test_threads_that_end_and_begin_are_followed(kernel, tmp_path):
    threads = EventThreads(kernel.folder)
    assert not threads.find_stuck()
    kernel.show(STUCK)
    assert any(looks(threads, 10 + STUCK_LOOKS + 1))
    for file in (tmp_path / '17').iterdir():
        file.unlink()
    assert not any(looks(threads, 12))


def test_a_system_without_such_files_shows_nothing(tmp_path):
    assert not any(looks(EventThreads(tmp_path / 'nowhere'), 12))


@given(strategies.text())
def test_no_text_of_the_kernel_raises(call: str):
    assert waits_for_lock(call) in (True, False)


def test_a_real_thread_that_waits_for_a_lock_is_found_until_it_goes_on(monkeypatch):
    monkeypatch.undo()
    if not event_threads.FUTEX:
        pytest.skip('the number of the system call is known on x86-64 and ARM64 only')
    condition = threading.Condition()
    idle = threading.Thread(target=lambda: condition.acquire() and condition.wait(60.0))
    timer = LockedTimer()
    try:
        idle.start()
        wait_until(
            lambda: waits_for_lock(Path(f'/proc/self/task/{timer.task}/syscall').read_text()),
            'it waits',
        )
        assert not waits_for_lock(Path(f'/proc/self/task/{idle.native_id}/syscall').read_text())
        threads = EventThreads()
        assert looks(threads, STUCK_LOOKS + 1)[-1] == 'dds.ev.0'
    finally:
        timer.release()
        with condition:
            condition.notify()
        idle.join()
    assert not threads.find_stuck()
