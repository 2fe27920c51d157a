"""The benchmark of growing fleets with a small one: real servers, a router under a profiler."""

from __future__ import annotations

import contextlib

import pytest

from lerobot_serve.bench import profiled
from lerobot_serve.bench.children import module
from lerobot_serve.bench.scale import Fleet

ROBOTS, SECONDS = 4, 1.5


@pytest.mark.skipif(not profiled.is_possible(), reason=profiled.WHY_NOT)
def test_a_fleet_grows_and_what_it_costs_is_known(tmp_path):
    profile = tmp_path / 'profile'
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, ROBOTS, module('profiled', profile))
        fleet.grow(ROBOTS // 2)
        fleet.grow(ROBOTS)
        run = fleet.run(SECONDS)
    assert run.counts['sent'] == run.counts['answered'] == ROBOTS * 3
    assert run.counts['lost'] == run.counts['uncounted'] == 0
    for window in run.windows:
        assert len(window.latencies_ms) == ROBOTS
        assert set(window.cpu_s) == {'router', 'servers', 'robots'}
        assert min(window.memory_mb.values()) > 10
    assert {'intake', 'answers', 'control'} <= set(profiled.read(profile))
