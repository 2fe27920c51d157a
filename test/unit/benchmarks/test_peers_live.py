# SPDX-License-Identifier: Apache-2.0
"""A real peer over its real processes, where it needs nothing or a benchmark has installed it."""

from __future__ import annotations

import pytest

from benchmarks.harness.processes import cpu_s
from benchmarks.peers import peer as processes
from benchmarks.peers import pinned_packages
from benchmarks.peers.peer_process import ImageSet

SMALL = ImageSet(2, 24, 32)


@pytest.fixture
def installed(repository):
    found = pinned_packages.installed('openpi', repository / 'out' / 'bench' / 'peers')
    if not found:
        pytest.skip('openpi-client is not installed; `make bench BENCH=many_robots` installs it')
    return found


def test_openpi_s_client_is_served(installed, tmp_path):
    with processes.running_peer('openpi', installed, tmp_path) as peer:
        pinned = dict(pin.split('==') for pin in pinned_packages.pins_of('openpi'))
        assert peer.versions == pinned
        assert all(peer.trip_ms(SMALL) for _ in range(3))
        peer.server.kill()
        peer.server.wait()
        assert peer.trip_ms(SMALL) is None


def test_openpi_s_robots_are_served(installed, tmp_path):
    with processes.running_peer('openpi', installed, tmp_path, role='robots') as peer:
        assert peer.order('open', 3, str(SMALL)) == 3
        told = peer.order('pace', 0.2, 20.0)
        # a busy machine misses a turn
        assert all(1 <= one['sent'] <= 4 for one in told)
        assert all(len(one['latencies_ms']) == one['sent'] for one in told)
        assert cpu_s(peer.server.pid) > 0


@pytest.mark.parametrize(
    'peer', ['floors.memfd', 'floors.tcp', 'floors.bare_zenoh', 'lerobot_shaped']
)
def test_what_needs_no_package_is_served(peer, tmp_path):
    packages = pinned_packages.install(peer, tmp_path / 'peers')
    with processes.running_peer(peer, packages, tmp_path) as met:
        for size in (SMALL, ImageSet(3, 240, 320), SMALL):
            assert all(met.trip_ms(size) for _ in range(3))
