# SPDX-License-Identifier: Apache-2.0
"""Room for a policy: what is asked of which memory, and what the system says of it."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys
import weakref

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.runtime import memory
from lerobot_serve.policies.runtime.memory import (
    cgroup_memory,
    check_memory,
    machine_memory,
    MemoryCapacity,
    require_free,
)

MB = 1 << 20
sizes = st.integers(0, 1 << 45)
MEMORY_INFO = """\
MemTotal:       25277440 kB
MemFree:         1000000 kB
MemAvailable:   21000000 kB
HugePages_Total:       0
"""


@given(needed=sizes, free=sizes, total=sizes)
def test_a_policy_is_loaded_exactly_when_it_fits(needed, free, total):
    room = MemoryCapacity('some memory', free, total)
    if needed <= free:
        require_free(needed, room, LoadOptions('path'))
    else:
        with pytest.raises(PolicyError, match='some memory'):
            require_free(needed, room, LoadOptions('path'))


def test_the_refusal_has_all_figures_and_what_to_do():
    loading = LoadOptions('/policies/act', memory_margin_bytes=512 * MB)
    with pytest.raises(PolicyError) as caught:
        require_free(
            3000 * MB, MemoryCapacity('the memory of cuda:0', 2000 * MB, 8000 * MB), loading
        )
    text = str(caught.value)
    for said in (
        "'/policies/act' needs 3000 MB of the memory of cuda:0",
        '2000 of 8000 MB are free',
        'memory_margin_mb (now 512)',
    ):
        assert said in text
    assert '\n' not in text


@pytest.fixture
def rooms(monkeypatch):
    """Return a function that sets what is free on host and device."""

    def rooms(host: int, cuda: int = 0) -> None:
        monkeypatch.setattr(memory, 'host_memory', lambda: MemoryCapacity('the host', host, host))
        monkeypatch.setattr(
            memory, 'cuda_memory', lambda device: MemoryCapacity(device, cuda, cuda)
        )

    return rooms


@pytest.mark.parametrize(
    ('weights', 'margin', 'copies', 'free', 'fits'),
    [
        (100, 50, 1, 150, True),
        (100, 50, 1, 149, False),
        (100, 50, 2, 200, True),
        (100, 50, 2, 199, False),
        (100, 200, 2, 299, False),
    ],
)
def test_on_the_cpu_the_host_holds_it_all(rooms, weights, margin, copies, free, fits):
    rooms(host=free)
    loading = LoadOptions('path', memory_margin_bytes=margin)
    if fits:
        check_memory(loading, weights, copies)
    else:
        with pytest.raises(PolicyError, match='the host'):
            check_memory(loading, weights, copies)


@pytest.mark.parametrize(
    ('host', 'cuda', 'short'),
    [(200, 150, None), (200, 149, 'cuda:1'), (199, 150, 'the host')],
)
def test_on_cuda_the_device_holds_it_and_the_host_reads_it(rooms, host, cuda, short):
    rooms(host, cuda)
    loading = LoadOptions('path', 'cuda:1', memory_margin_bytes=50)
    if short is None:
        check_memory(loading, 100, 2)
    else:
        with pytest.raises(PolicyError, match=f'MB of {short}, of which'):
            check_memory(loading, 100, 2)


@pytest.mark.parametrize('device', ['cpu', 'cuda:1'])
def test_a_cache_of_embeddings_needs_memory_beside_the_margin(rooms, device):
    loading = LoadOptions('path', device, memory_margin_bytes=50, embedding_cache_bytes=30)
    rooms(180, 180)
    check_memory(loading, 100)
    rooms(179, 179)
    with pytest.raises(PolicyError):
        check_memory(loading, 100)


def test_what_the_machine_says():
    room = machine_memory(MEMORY_INFO)
    assert (room.free_bytes, room.total_bytes) == (21000000 << 10, 25277440 << 10)


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def version_2(limit: object, used: int, inactive: int = 0) -> dict[str, str]:
    stat = f'anon 1\ninactive_file {inactive}\nactive_file 5\n'
    return {'memory.max': f'{limit}\n', 'memory.current': f'{used}\n', 'memory.stat': stat}


def version_1(limit: object, used: int, inactive: int = 0) -> dict[str, str]:
    stat = f'inactive_file 1\ntotal_inactive_file {inactive}\n'
    return {
        'memory.limit_in_bytes': f'{limit}\n',
        'memory.usage_in_bytes': f'{used}\n',
        'memory.stat': stat,
    }


def figures(rooms: list[MemoryCapacity]) -> list[tuple[int, int]]:
    return [(room.free_bytes, room.total_bytes) for room in rooms]


def test_a_group_of_version_2_and_those_above_it_bound(tmp_path):
    group(tmp_path / 'robots' / 'server', version_2(1000, 700, inactive=100))
    group(tmp_path / 'robots', version_2(5000, 4900))
    group(tmp_path, version_2('max', 9))
    assert figures(cgroup_memory('0::/robots/server\n', tmp_path)) == [(400, 1000), (100, 5000)]


def test_a_group_of_version_1_bounds(tmp_path):
    group(tmp_path / 'memory' / 'docker', version_1(1000, 700, inactive=100))
    group(tmp_path / 'memory', version_1(9223372036854771712, 700))
    text = '5:devices:/\n4:memory:/docker\n1:cpu,cpuacct:/\n0::/\n'
    assert figures(cgroup_memory(text, tmp_path)) == [(400, 1000)]


def test_in_a_container_the_base_is_asked_where_the_path_is_the_hosts(tmp_path):
    group(tmp_path / 'memory', version_1(1000, 300))
    assert figures(cgroup_memory('4:memory:/docker/0123\n', tmp_path)) == [(700, 1000)]


def test_a_group_over_its_limit_has_no_room(tmp_path):
    group(tmp_path, version_2(1000, 1200))
    assert figures(cgroup_memory('0::/\n', tmp_path)) == [(0, 1000)]


def test_the_host_has_what_its_tightest_bound_leaves(tmp_path, monkeypatch):
    (tmp_path / 'meminfo').write_text(MEMORY_INFO)
    (tmp_path / 'cgroup').write_text('0::/\n')
    monkeypatch.setattr(memory, 'MEMORY_INFO', tmp_path / 'meminfo')
    monkeypatch.setattr(memory, 'OWN_CGROUPS', tmp_path / 'cgroup')
    monkeypatch.setattr(memory, 'CGROUPS', tmp_path)
    assert memory.host_memory().free_bytes == 21000000 << 10
    group(tmp_path, version_2(1000, 300))
    assert memory.host_memory().free_bytes == 700
    (tmp_path / 'cgroup').unlink()
    assert memory.host_memory().free_bytes == 21000000 << 10


def test_this_machine_answers():
    room = memory.host_memory()
    assert 0 < room.free_bytes <= room.total_bytes


def test_neither_checking_nor_releasing_imports_torch():
    code = (
        'import sys; from lerobot_serve.policies import base; '
        'from lerobot_serve.policies.runtime import memory; memory.release_unused(); '
        "memory.check_memory(base.LoadOptions(), 1); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, '-c', code], check=True)


def test_release_collects_what_nobody_refers_to():
    class Node:
        pass

    gone = []
    first, second = Node(), Node()
    first.other, second.other = second, first

    weakref.finalize(first, gone.append, True)
    del first, second
    memory.release_unused()
    assert gone == [True]
