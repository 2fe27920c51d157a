# SPDX-License-Identifier: Apache-2.0
"""A router with `gate_folder`: slot b waits for a record, and what drives the fleet does not."""

from __future__ import annotations

from functools import partial

import pytest
from support.router.dispatch_rig import answer_bytes, episode_in, request_bytes
from support.router.router_core_rig import RoutingRig, TWO_SLOTS

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.schema import Flag
from lerobot_serve.router.canary.gate_record import GateRecord, record_path, write_record
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.core import GATE_UNREAD
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
RECORD = GateRecord('act@b', 'act@a', 'passed', '', 30, 100, '', '')


@pytest.fixture
def gated(make_router, tmp_path):
    """Make routers that have a folder of gate records."""
    return partial(make_router, **TWO_SLOTS, gate_folder=str(tmp_path / 'gates'))


@pytest.fixture
def rig(gated):
    return gated()


def text(rig: RoutingRig) -> str:
    rig.core.update_canary()
    return rig.slots['b'].text


def test_a_candidate_waits_for_its_record(rig, tmp_path):
    assert 'it has no gate record in' in text(rig)
    write_record(tmp_path / 'gates', RECORD)
    assert text(rig) == ''


def test_another_policy_needs_its_own(rig, tmp_path):
    write_record(tmp_path / 'gates', RECORD)
    assert text(rig) == ''
    rig.hear('/b1', policy='act@c')
    assert 'it has no gate record in' in text(rig)


def test_a_record_against_an_earlier_champion_is_stale(rig, tmp_path):
    write_record(tmp_path / 'gates', RECORD)
    for server in ('/a1', '/a2'):
        rig.hear(server, policy='act@z')
    assert 'slot a serves act@z' in text(rig)


def test_a_promoted_policy_needs_no_record_until_its_rollout_ends(gated, tmp_path):
    built = gated(canary_plan=('50', '100'))
    write_record(tmp_path / 'gates', RECORD)
    text(built)
    assert text(built) == ''
    built.command(R.CANARY_PROMOTE, '', 'seen enough')
    assert built.core.canary.canary.state is CanaryPhase.PROMOTED
    record_path(tmp_path / 'gates', 'act@b').unlink()
    assert text(built) == ''
    built.close()
    # a router that starts during the watch locks the fleet out at no moment
    built = gated(canary_plan=('50', '100'))
    assert built.slots['b'].unmet_requirements == ''
    assert text(built) == ''
    built.command(R.CANARY_STOP, '', 'over', split_percent=50)
    assert 'it has no gate record in' in text(built)


def test_an_earlier_promotion_does_not_admit_a_policy_for_another_champion(rig, tmp_path):
    """It was promoted, slot a serves a later one, and the old one returns to slot b."""
    rig.core.decisions.promote('act@b')
    assert 'it has no gate record in' in text(rig)
    write_record(tmp_path / 'gates', RECORD)
    assert text(rig) == ''
    for server in ('/a1', '/a2'):
        rig.hear(server, policy='act@z')
    assert 'slot a serves act@z' in text(rig)


def test_a_poll_does_not_undo_the_hold_of_a_swap_in_the_meantime(rig, tmp_path, monkeypatch):
    write_record(tmp_path / 'gates', RECORD)
    judge = rig.core.unmet_requirements

    def judge_while_it_swaps(policy: str) -> str:
        found = judge(policy)
        with rig.core.table.lock:
            rig.core._record_swap(rig.replicas['/b1'], 'act@c')
        return found

    monkeypatch.setattr(rig.core, 'unmet_requirements', judge_while_it_swaps)
    rig.core.update_canary()
    assert rig.slots['b'].policy == 'act@c'
    assert rig.slots['b'].unmet_requirements == GATE_UNREAD
    monkeypatch.undo()
    assert 'it has no gate record in' in text(rig)


@pytest.mark.parametrize('state', ON_TRIAL)
def test_a_record_that_is_gone_rolls_no_running_canary_back(gated, tmp_path, state):
    built = gated(canary_plan=('50', '100'))
    write_record(tmp_path / 'gates', RECORD)
    assert text(built) == ''
    record = built.core.canary.canary.record
    record.state = state
    assert text(built) == ''
    record_path(tmp_path / 'gates', 'act@b').unlink()
    assert text(built) == ''
    assert record.state in ON_TRIAL
    # another policy does not drive by it, from its first report on
    built.hear('/b1', policy='act@c')
    assert built.slots['b'].unmet_requirements == GATE_UNREAD
    assert 'it has no gate record in' in text(built)


def test_before_the_first_poll_nothing_is_admitted(rig, tmp_path):
    assert rig.slots['b'].unmet_requirements == GATE_UNREAD
    write_record(tmp_path / 'gates', RECORD)
    assert text(rig) == ''


def test_shadow_and_gate_are_both_named(gated):
    found = text(gated(shadow_server='/shadow', shadow_minimum_episodes=5))
    assert '0 of 5 episodes' in found
    assert 'it has no gate record in' in found


@pytest.mark.parametrize('first', ['chunk', 'status'])
def test_a_policy_that_is_swapped_in_drives_no_running_episode_without_a_record(
    gated, tmp_path, first
):
    built = gated(split_percent=50)
    write_record(tmp_path / 'gates', RECORD)
    assert text(built) == ''
    built.core.is_open = True
    built.robot().known_policies = {'act@a', 'act@b'}
    episode = episode_in('b')

    def ask(seq: int, policy: str, flags: int = 0) -> str:
        """Ask, let slot b answer, and return the slot of what the robot gets."""
        raw = request_bytes('robot', seq, episode)
        built.core.on_request(raw)
        server, _ = built.outside.sent[-1]
        assert server == '/b1'
        built.core.on_reply(server, answer_bytes(raw, policy=policy, slot='b', flags=flags))
        server, _ = built.outside.sent[-1]
        if server != '/b1':
            built.core.on_reply(server, answer_bytes(raw, policy='act@a'))
        (_, raw), chunk_count = built.outside.replies[-1], len(built.outside.replies)
        assert chunk_count == seq
        return wire_chunk.decode(raw).slot

    assert ask(1, 'act@b') == 'b'
    if first == 'status':
        built.hear('/b1', policy='act@c', swapped=True)
    # with the reply itself, before any status and any poll
    assert ask(2, 'act@c', Flag.POLICY_CHANGED) == 'a'
    assert built.slots['b'].unmet_requirements == GATE_UNREAD
    assert 'it has no gate record in' in text(built)


def test_the_shadow_requirements_of_a_swapped_in_policy_hold_at_once(make_router):
    built = make_router(**TWO_SLOTS, shadow_server='/shadow', shadow_minimum_episodes=5)
    built.slots['b'].unmet_requirements = ''
    built.hear('/b1', policy='act@c', swapped=True)
    assert '0 of 5 episodes' in built.slots['b'].unmet_requirements
