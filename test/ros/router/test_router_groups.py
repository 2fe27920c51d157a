# SPDX-License-Identifier: Apache-2.0
"""Two groups of slots and a router in one domain: each router finds the servers of its own."""

from __future__ import annotations

import itertools

import pytest
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Status

CELLS = ('cell_1', 'cell_2')


# an episode stays in its slot, which may be the only one that is ready
EPISODES = itertools.count()


def chunks_of_both_slots(client: SmallClient) -> list[Chunk]:
    """Return a chunk for each of eight new episodes; none when one slot served all of them."""
    chunks = [client.round_trip(episode_id=f'episode-{next(EPISODES)}') for _ in range(8)]
    return chunks if {chunk.slot for chunk in chunks} == {*'ab'} else []


@pytest.mark.slow
def test_two_groups_in_one_domain_know_nothing_of_each_other(router_rig):
    fleet = router_rig.fleet
    for cell in CELLS:
        for slot in ('a', 'b'):
            folder = router_rig.steering(f'{cell}_{slot}').folder
            fleet.start(
                f'{cell}_{slot}',
                'policy_server',
                namespace=f'/{cell}/slot_{slot}',
                policy_kind='steered',
                policy_path=f'{folder}?chunk=30',
                slot=slot,
                status_period_s=0.1,
            )
        # its servers are those of the defaults: slot_a/policy_server and slot_b/policy_server
        fleet.start(cell, 'policy_router', namespace=f'/{cell}')
    policies = []
    for cell in CELLS:
        client = SmallClient(router_rig.node, f'/{cell}/policy_router', cell, cameras=())
        client.open()
        chunks = router_rig.wait(
            lambda client=client: chunks_of_both_slots(client), f'both slots of {cell} reply'
        )
        assert {chunk.status for chunk in chunks} == {Status.OK}
        policies.append({chunk.policy for chunk in chunks})
        log = router_rig.log(cell)
        assert f'slot a (/{cell}/slot_a/policy_server)' in log
    assert not policies[0] & policies[1]
