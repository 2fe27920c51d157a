# SPDX-License-Identifier: Apache-2.0
"""The benchmark of one gateway with clients of all protocols, shortened: each is answered."""

from __future__ import annotations

import pytest

from benchmarks.gateways import mixed, paced_clients
from benchmarks.peers.peer_process import ImageSet


@pytest.mark.slow
def test_clients_of_all_protocols_ask_while_one_does_not_read(monkeypatch, tmp_path):
    short = {'CLIENTS': len(mixed.KINDS), 'RATE_HZ': 5.0, 'PERIOD_S': 0.5}
    for name, value in (short | {'SIZE': ImageSet(1, 24, 32)}).items():
        monkeypatch.setattr(mixed, name, value)
    # enough to see that it sends; test_callers_that_stop_reading fills connections
    monkeypatch.setattr(paced_clients, 'FLOOD_REQUESTS', 20)
    (case,) = mixed.measure(1, tmp_path)
    for state in (mixed.READ, mixed.STOPPED):
        assert case.counts[f'failed, {state}'] == 0
        # all but the one that stops
        assert case.counts[f'asked, {state}'] == len(case.series_ms[state]) >= len(mixed.KINDS) - 1
    assert case.counts['sent and not read'] >= 20
    assert case.goals['the others get all replies']
