# SPDX-License-Identifier: Apache-2.0
"""The benchmark of growing fleets with a small one: real servers, one router under a profiler."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks.fleet_growth import RoutedFleet
from benchmarks.harness import profiler
from benchmarks.harness.processes import module_command
from benchmarks.site import postgres
from benchmarks.site.processes import LINKS

ROBOTS, SECONDS = 4, 1.5


@pytest.mark.slow
@pytest.mark.skipif(not profiler.is_possible(), reason=profiler.WHY_NOT)
@pytest.mark.skipif(not postgres.is_installed(), reason=postgres.MISSING)
@pytest.mark.parametrize('link', LINKS)
def test_a_fleet_grows_and_what_it_costs_is_known(tmp_path, link):
    profile = tmp_path / 'profile'
    with contextlib.ExitStack() as stack:
        under = module_command('harness.profiler', profile)
        fleet = RoutedFleet(stack, tmp_path, ROBOTS, under, link)
        fleet.grow(ROBOTS // 2)
        fleet.grow(ROBOTS)
        run = fleet.run(SECONDS)
    assert run.counts['sent'] == run.counts['answered'] == ROBOTS * 3
    assert run.counts['lost'] == run.counts['uncounted'] == 0
    for window in run.windows:
        assert len(window.latencies_ms) == ROBOTS
        assert set(window.cpu_s) == {'router', 'servers', 'robots', 'store'}
        assert min(window.memory_mb.values()) > 10
    assert {'intake', 'replies', 'control'} <= set(profiler.read(profile))
