# SPDX-License-Identifier: Apache-2.0
"""Room for a policy beside others: who loads, who waits, who is refused; what a crash leaves."""

from __future__ import annotations

from itertools import product
import os
from pathlib import Path
import signal
import subprocess
import sys

import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.runtime import memory, memory_reservation
from lerobot_serve.policies.runtime.memory import MB, MemoryCapacity
from lerobot_serve.policies.runtime.memory_reservation import (
    check_fits,
    HOST,
    MemoryBusy,
    MemoryNeed,
    ReservationRecord,
    ReservationStore,
)

TOTAL = 1000 * MB
LOADING = LoadOptions('/policies/act')
WAIT_S = 20.0
HOLD = """
import sys, time
from pathlib import Path
from lerobot_serve.policies.runtime.memory_reservation import ReservationRecord, ReservationStore
record = ReservationRecord(7, 'other', 1, 2, True)
held = ReservationStore('host', Path(sys.argv[1])).add(record, lambda _: None)
print('held', flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch) -> Path:
    """Give the test a folder of its own to see other processes in."""
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path))
    return tmp_path / 'lerobot_serve'


def entry(declared: int, needed: int, *, loads: bool) -> ReservationRecord:
    return ReservationRecord(7, 'other', declared * MB, needed * MB if loads else 0, loads)


def verdict(declared: int, needed: int, free: int, others: list[ReservationRecord]) -> str:
    room = MemoryCapacity('the memory of cuda:0', free * MB, TOTAL)
    place = MemoryNeed('cuda', lambda: room, declared * MB, needed * MB)
    try:
        check_fits(place, room, others, LOADING)
    except MemoryBusy:
        return 'waits'
    except PolicyError:
        return 'refused'
    return 'loads'


def expected(declared: int, needed: int, free: int, others: list[ReservationRecord]) -> str:
    """What the two rules say, in other words than the guard's."""
    if declared and declared * MB + sum(o.declared_bytes for o in others) > 0.7 * TOTAL:
        return 'refused'
    about_to_be_taken = sum(o.needed_bytes for o in others if o.loads)
    if needed * MB <= free * MB - about_to_be_taken:
        return 'loads'
    return 'waits' if any(o.loads for o in others) else 'refused'


def test_every_combination_of_what_is_wanted_and_what_is_held():
    found = set()
    for declared, margin, free, held, loads in product(
        (0, 1, 350, 351, 700, 701), (0, 100), (0, 300, 701, 1000), (None, 0, 350), (True, False)
    ):
        others = [] if held is None else [entry(held, held + 100, loads=loads)]
        asked = declared, declared + margin, free, others
        assert verdict(*asked) == expected(*asked), asked
        found.add(verdict(*asked))
    assert found == {'loads', 'waits', 'refused'}


def test_a_cache_of_embeddings_is_reserved_beside_the_margin():
    options = LoadOptions('policy', memory_margin_bytes=5, embedding_cache_bytes=3)
    (need,) = memory_reservation.memory_needs(options, declared=10)
    assert (need.declared_bytes, need.needed_bytes) == (10, 18)


def test_the_refusal_by_the_share_names_who_holds_what():
    room = MemoryCapacity('the memory of cuda:0', TOTAL, TOTAL)
    place = MemoryNeed('cuda', lambda: room, 400 * MB, 500 * MB)
    with pytest.raises(PolicyError) as refused:
        check_fits(place, room, [entry(350, 0, loads=False)], LOADING)
    text = str(refused.value)
    for said in (
        "'/policies/act' declares 400 MB",
        "the policies 'other' (process 7) hold 350 MB of the memory of cuda:0",
        'more than 700 MB (70% of 1000 MB)',
    ):
        assert said in text
    with pytest.raises(PolicyError, match='others hold 0 MB'):
        check_fits(MemoryNeed('cuda', lambda: room, 701 * MB, 701 * MB), room, [], LOADING)


def policy(folder: Path, size_bytes: int = 4) -> LoadOptions:
    folder.mkdir()
    (folder / 'program.onnx').write_bytes(bytes(size_bytes))
    return LoadOptions(str(folder), memory_margin_bytes=600 * MB)


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(memory, 'host_memory', lambda: MemoryCapacity('the host', TOTAL, TOTAL))


def test_the_second_waits_until_the_first_has_loaded(tmp_path, host):
    first = memory_reservation.reserve(policy(tmp_path / 'first'))
    told, turns = [], []

    def stopped(_: float) -> bool:
        turns.append(len(told))
        if len(turns) == 3:
            first.on_loaded()
        return False

    second = memory_reservation.reserve(
        policy(tmp_path / 'second'), log_warning=told.append, wait_for_stop=stopped
    )
    assert turns == [1, 1, 1]
    (sentence,) = told
    assert f'600 MB are reserved by the loading process {os.getpid()}' in sentence
    assert 'waiting for it to finish loading' in sentence
    assert sorted(each.loads for each in ReservationStore(HOST).entries()) == [False, True]
    for each in (first, second):
        each.release()
        each.release()
    assert ReservationStore(HOST).entries() == []


def test_who_waits_is_let_go_when_the_process_ends(tmp_path, host):
    first = memory_reservation.reserve(policy(tmp_path / 'first'))
    with pytest.raises(PolicyError, match='shutting down'):
        memory_reservation.reserve(policy(tmp_path / 'second'), wait_for_stop=lambda _: True)
    first.release()


def test_a_policy_without_files_reserves_nothing(tmp_path, host):
    for path in ('', 'joints=6,chunk=3', str(tmp_path / 'nowhere')):
        memory_reservation.reserve(LoadOptions(path, memory_margin_bytes=10 * TOTAL)).on_loaded()
    assert not (tmp_path / 'lerobot_serve').exists()


def test_on_cuda_the_device_holds_it_and_the_host_only_while_it_loads(tmp_path, host, monkeypatch):
    monkeypatch.setattr(memory, 'cuda_memory', lambda device: MemoryCapacity(device, TOTAL, TOTAL))
    monkeypatch.setattr(memory, 'cuda_device_key', lambda device: 'cuda-uuid')
    asked = policy(tmp_path / 'first')
    asked = LoadOptions(asked.path, 'cuda:1', memory_margin_bytes=600 * MB)
    held = memory_reservation.reserve(asked)
    (device,), (host_entry,) = (
        ReservationStore('cuda-uuid').entries(),
        ReservationStore(HOST).entries(),
    )
    assert (device.declared_bytes, device.needed_bytes) == (4, 4 + 600 * MB)
    assert (host_entry.declared_bytes, host_entry.needed_bytes) == (0, 4)
    held.on_loaded()
    assert [each.needed_bytes for each in ReservationStore('cuda-uuid').entries()] == [0]
    assert ReservationStore(HOST).entries() == []
    held.release()


def test_what_a_killed_process_held_is_held_no_more(tmp_path):
    root = tmp_path / 'ledger'
    root.mkdir(mode=0o700)
    process = subprocess.Popen(
        [sys.executable, '-c', HOLD, str(root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == 'held\n'
        assert ReservationStore('host', root).entries() == [
            ReservationRecord(7, 'other', 1, 2, True)
        ]
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()
    assert ReservationStore('host', root).entries() == []
    assert not list(root.glob('*.held'))


def test_devices_are_apart(tmp_path):
    held = ReservationStore('cuda-1').add(entry(1, 1, loads=True), lambda _: None)
    assert ReservationStore('cuda-2').entries() == []
    assert len(ReservationStore('cuda-1').entries()) == 1
    held.release()


@pytest.mark.parametrize('way', ['link', 'open', 'file'])
def test_a_folder_that_others_may_write_to_is_not_trusted(way, tmp_path, runtime):
    if way == 'link':
        runtime.symlink_to(tmp_path)
    elif way == 'file':
        runtime.write_text('')
    else:
        runtime.mkdir()
        runtime.chmod(0o777)
    with pytest.raises(PolicyError, match='XDG_RUNTIME_DIR'):
        ReservationStore(HOST)


def test_an_entry_that_cannot_be_written_keeps_nobody_else_from_loading(runtime, monkeypatch):
    store = ReservationStore('host')

    def full(*_: object) -> int:
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patched:
        patched.setattr(os, 'pwrite', full)
        with pytest.raises(PolicyError, match='No space left'):
            store.add(entry(1, 2, loads=True), lambda _: None)
    assert not list(runtime.glob('*.held'))
    store.add(entry(1, 2, loads=True), lambda others: None).release()


def test_an_entry_of_another_version_is_named(runtime):
    store = ReservationStore('host')
    held = store.add(entry(1, 2, loads=True), lambda _: None)
    (file,) = runtime.glob('*.held')
    file.write_text('{"of": "another version"}')
    with pytest.raises(PolicyError, match=file.name):
        store.entries()
    held.release()
    assert store.entries() == []
