# SPDX-License-Identifier: Apache-2.0
"""Benchmarks with many sessions, shortened: the server accepts each session, over both links."""

from __future__ import annotations

import pytest

from benchmarks import many_robots, round_trip
from benchmarks.harness.nodes import serve
from benchmarks.harness.router_process import picture, POLICY
from benchmarks.peers import fleet_results
from benchmarks.peers.peer_process import ImageSet
from lerobot_serve.contract.schema import Codec

ROBOTS = 2
SMALL = ImageSet(2, 24, 32)


@pytest.fixture(autouse=True)
def without_peers(monkeypatch):
    for module in (many_robots, round_trip):
        monkeypatch.setattr(module, 'PEERS', {})


@pytest.mark.slow
def test_many_robots_ask_in_each_way(monkeypatch, tmp_path):
    short = {'COUNTS': (ROBOTS,), 'BLOCKS': 1, 'LEAST_S': 0.5, 'WARM_UP_S': 0.1, 'SIZE': SMALL}
    for name, value in short.items():
        monkeypatch.setattr(many_robots, name, value)
    cases = {case.name: case for case in many_robots.measure(1, tmp_path)}
    for who in fleet_results.OWN:
        case = cases[fleet_results.case_name(ROBOTS, who)]
        assert case.counts['answered'] == case.counts['sent'] == ROBOTS
        assert case.goals['every chunk comes']


def test_robots_of_one_generator_share_a_reply_topic(tmp_path):
    frames = {'observation.images.front': picture(16, 17)}
    with serve(POLICY, tmp_path) as swarm:
        swarm.open(ROBOTS, frames, Codec.RAW)
        assert swarm.pace(0.5, 2.0).answered == ROBOTS


@pytest.mark.slow
def test_each_way_of_a_round_trip_has_a_session(monkeypatch, tmp_path):
    monkeypatch.setattr(round_trip, 'SIZES', (SMALL,))
    monkeypatch.setattr(round_trip, 'WARM_UP_ROUNDS', 2)
    looped, paced = (c for c in round_trip.measure(2, tmp_path, '0,1') if c.counts)
    for case in (looped, paced):
        assert {name: n for name, n in case.counts.items() if name.startswith('lost') and n} == {}
