# SPDX-License-Identifier: Apache-2.0
"""A policy in shadow: it sees what robots see, is compared, and never matters to them."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from support.nodes.small_client import SmallClient
from support.nodes.zenoh_links import both_links

from lerobot_serve.contract.data_path.execution_report import encode, ExecutedRun, ExecutionReport
from lerobot_serve.contract.schema import Status
from lerobot_serve.ros import qos
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve_interfaces.msg import ActionChunk, ShadowDivergence, ShadowSummary

pytestmark = pytest.mark.slow

ROWS = 5


class Player:
    """A robot that plays the first rows of each chunk and tells so with its next request."""

    def __init__(self, client: SmallClient) -> None:
        self._client, self._played = client, ()
        self._actions = 0

    def play(self, episode_id: str = 'episode-1') -> None:
        told = encode(ExecutionReport(actions=self._actions, runs=self._played))
        chunk = self._client.round_trip(episode_id=episode_id, extensions=(told,))
        assert chunk.status == Status.OK
        self._actions += ROWS
        header = chunk.header
        run = ExecutedRun(header.seq, header.session_epoch, 0, np.array(chunk.robot[:ROWS]))
        self._played = (run,)


def shadowed(rig, *, live: str = '', shadow: str = '&offset=0.1', **router: object) -> Player:
    """Start a live and a shadow policy, and return a robot."""
    rig.server('live', 'prod', options=live)
    rig.server('shadow', 'prod', options=shadow)
    rig.router(slot_prod=['live'], shadow_server='/shadow/policy_server', **router)
    rig.wait_for_health('healthy')
    return Player(rig.robot())


def compared(rig, player: Player, holds=lambda found: True) -> ShadowDivergence:
    """Play until a comparison is published that `holds`."""

    def found() -> ShadowDivergence | None:
        player.play()
        return next((each for each in tuple(rig.watch.divergences) if holds(each)), None)

    return rig.wait(found, 'a comparison')


@both_links
def test_what_the_shadow_would_have_done_is_compared_with_what_was_executed(router_rig):
    folder = router_rig.folder / 'trace'
    player = shadowed(router_rig, trace_folder=folder)
    found = compared(router_rig, player)
    assert found.rows == ROWS
    assert found.divergence == pytest.approx(0.1, abs=1e-5)
    assert list(found.divergence_per_action) == pytest.approx([0.1] * 6, abs=1e-5)
    assert list(found.action_names) == [f'joint_{i}.pos' for i in range(6)]
    assert found.live_policy != found.shadow_policy
    assert isnan(found.divergence_in_spreads)
    assert found.latency_ms > 0
    assert not found.limits_known
    summary: ShadowSummary = router_rig.wait(
        lambda: (s := router_rig.watch.last.get(ShadowSummary)) and s.samples and s, 'a summary'
    )
    assert summary.divergence_mean == pytest.approx(0.1, abs=1e-5)
    assert (summary.episodes, summary.shadow_policy) == (1, found.shadow_policy)

    def told() -> dict | None:
        (file,) = folder.glob('*.jsonl')
        return next((r for _, r in read_records(file) if r['kind'] == 'shadow'), None)

    record = router_rig.wait(told, 'the comparison stands in the trace')
    assert (record['client_id'], record['session_epoch'], record['rows']) == ('tester', 1, ROWS)


@both_links
def test_a_live_policy_that_draws_is_the_unit(router_rig):
    player = shadowed(
        router_rig, live='&noise=0.1', shadow='&noise=0.1&offset=1', shadow_spread_percent=100.0
    )
    found = compared(router_rig, player, lambda each: not isnan(each.divergence_in_spreads))
    # two draws of 0.1 are 0.14 apart; the shadow is 1 away
    assert 4 < found.divergence_in_spreads < 14


@both_links
@pytest.mark.parametrize('trouble', ['kill', 'hang'])
def test_a_shadow_that_is_gone_or_hangs_is_not_noticed_by_robots(router_rig, trouble):
    player = shadowed(router_rig)
    compared(router_rig, player)
    getattr(router_rig, trouble)('shadow')
    for number in range(100):
        player.play(f'episode-{number}')
    state = router_rig.state
    assert state.health == 'healthy'
    assert state.slots[0].requests_failed == 0


def test_a_shadow_that_floods_is_not_noticed_by_robots(router_rig, node):
    player = shadowed(router_rig)
    found = compared(router_rig, player)
    flood = node.create_publisher(ActionChunk, '/policy_router/replies/shadow', qos.ACTION_CHUNK)
    router_rig.wait(flood.get_subscription_count, 'the router listens')
    nonsense = ActionChunk(client_id='tester', policy=found.shadow_policy)
    nonsense.header.msg_type = 2
    for number in range(40):
        for seq in range(100):
            nonsense.header.seq = 1000 * number + seq
            flood.publish(nonsense)
        player.play(f'episode-{number}')
    assert router_rig.state.slots[0].requests_failed == 0
    router_rig.watch.divergences.clear()
    compared(router_rig, player)


def test_a_shadow_that_serves_too_is_refused_in_one_line(router_rig):
    started = router_rig.router(slot_prod=['one'], shadow_server='/one/policy_server')
    assert started.wait(30) == 1
    assert 'a shadow requires a separate policy server' in router_rig.log('router')
