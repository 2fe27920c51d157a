# SPDX-License-Identifier: Apache-2.0
"""What was decided about a policy holds: whatever dies, and in the router that starts next."""

from __future__ import annotations

import queue

from msgspec.structs import replace
import pytest
from support.nodes.router_rig import LIMIT_S, RouterRig
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.schema import Status
from lerobot_serve_interfaces.msg import CanaryState, RouterState, SlotState
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
PLAN = ['50', '100']
EPISODES = 4


def rolled_back(rig: RouterRig, why: str = 'arm hit the table') -> None:
    """Give a plan as new_version.md does, and roll back by hand."""
    assert not rig.set(canary__plan=PLAN)
    rig.wait(lambda: state(rig) == CanaryState.RUNNING, 'the canary runs')
    assert rig.control(R.CANARY_ROLLBACK, reason=why).success
    rig.wait(lambda: state(rig) == CanaryState.ROLLED_BACK, 'it is rolled back')


def state(rig: RouterRig) -> int:
    now = rig.watch.last.get(CanaryState)
    return now.state if now else CanaryState.OFF


def restarted(rig: RouterRig, client: SmallClient, **router: object) -> None:
    """Kill the router, start it again, and let the robot open its session there."""
    rig.kill('router')
    rig.watch.last.clear()
    rig.router(**{'slot_a': ['a'], 'slot_b': ['b'], **router})
    rig.wait(lambda: rig.watch.last.get(RouterState), 'the next router tells of itself')
    client.ask = replace(client.ask, session_epoch=client.ask.session_epoch + 1)
    client.open()


def asked(client: SmallClient, episode: str, limit_s: float = 5.0) -> tuple[int, str]:
    """Ask once; return status and slot of the answer, -1 where none comes in time."""
    seq = client.request(episode_id=episode)
    while True:
        try:
            chunk = client.take(limit_s)
        except queue.Empty:
            return -1, ''
        if chunk.header.seq == seq:
            return chunk.status, chunk.slot


def new(slot: str, salt: object) -> list[str]:
    return [RouterRig.episode(slot, salt=f'{salt}{number}') for number in range(EPISODES)]


def test_a_candidate_that_was_rolled_back_drives_no_robot_while_the_champion_hangs(router_rig):
    router_rig.slots()
    client, running = router_rig.robot(), router_rig.episode('a')
    assert asked(client, running) == (Status.OK, 'a')
    rolled_back(router_rig)
    for number in range(EPISODES):
        assert asked(client, f'before-{number}') == (Status.OK, 'a')
    router_rig.hang('a')
    # not for as long as others take to forget that it was ever there
    found = [asked(client, name, 1.2) for name in [running] * 2 + new('b', 'x')[:2]]
    router_rig.go_on('a')
    assert not [slot for _, slot in found if slot == 'b']
    assert Status.OK not in {status for status, _ in found}
    # the champion continues with the episode that ran, and nothing was moved
    router_rig.wait(lambda: asked(client, running) == (Status.OK, 'a'), 'the champion answers')
    assert not [d for d in router_rig.watch.decisions if d.moved]
    slot = router_rig.slot('b')
    assert (slot.state, slot.share_percent) == (SlotState.BARRED, 0)
    assert 'arm hit the table' in slot.text
    assert slot.episodes == 0 or router_rig.state.health == 'slot_b_drained'


@pytest.mark.slow
def test_what_was_set_live_holds_in_the_router_that_starts_next(router_rig):
    router_rig.slots()
    client = router_rig.robot()
    rolled_back(router_rig)
    restarted(router_rig, client)
    router_rig.wait(lambda: state(router_rig) == CanaryState.ROLLED_BACK, 'the verdict')
    assert router_rig.get('canary.plan') == PLAN
    assert {asked(client, name) for name in new('b', 'r')} == {(Status.OK, 'a')}
    log = router_rig.log('router')
    assert 'canary.plan is ' in log and 'set by hand 20' in log and 'the file says []' in log
    assert 'is barred: rolled back 20' in log

    # without the plan the verdict stays
    assert not router_rig.set(canary__plan=[])
    assert not router_rig.set(split_percent=100)
    restarted(router_rig, client)
    assert router_rig.get('canary.plan') == []
    # the first state may be from before its server is heard of
    router_rig.wait(lambda: router_rig.slot('b').state == SlotState.BARRED, 'b is barred')
    assert {asked(client, name) for name in new('b', 's')} == {(Status.OK, 'a')}

    # a drain and a split, too
    assert router_rig.control(R.LIFT_VERDICT, 'b').success
    assert not router_rig.set(split_percent=0)
    assert router_rig.control(R.DRAIN, 'a', 'maintenance').success
    restarted(router_rig, client)
    assert router_rig.get('split_percent') == 0
    router_rig.wait(lambda: router_rig.slot('a').state == SlotState.DRAINED, 'a is drained')
    assert {asked(client, name) for name in new('a', 't')} == {(Status.OK, 'b')}


def test_after_a_promotion_the_new_champion_stays_champion(router_rig):
    router_rig.slots(split_percent=100)
    client = router_rig.robot()
    assert not router_rig.set(canary__plan=PLAN)
    router_rig.wait(lambda: state(router_rig) == CanaryState.RUNNING, 'the canary runs')
    assert router_rig.control(R.CANARY_PROMOTE).success
    router_rig.wait(lambda: state(router_rig) == CanaryState.PROMOTED, 'it is promoted', LIMIT_S)
    assert router_rig.get('split_percent') == 0
    restarted(router_rig, client, split_percent=100)
    router_rig.wait(lambda: state(router_rig) == CanaryState.PROMOTED, 'it is promoted', LIMIT_S)
    assert router_rig.get('split_percent') == 0
    assert {asked(client, name) for name in new('a', 'p')} == {(Status.OK, 'b')}
    assert 'set by the canary 20' in router_rig.log('router')
