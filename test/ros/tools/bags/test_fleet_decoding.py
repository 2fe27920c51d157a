# SPDX-License-Identifier: Apache-2.0
"""The states of servers, routers and judges are read from CDR bytes as they were made."""

from __future__ import annotations

from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
import pytest
from rclpy.serialization import serialize_message

from lerobot_serve.tools.bags import fleet_decoding
from lerobot_serve.tools.bags.message_decoding import constant_name
from lerobot_serve.wire.errors import Malformed
from lerobot_serve_interfaces.msg import (
    CanaryState,
    DropCount,
    EpisodeOutcome,
    ReplicaState,
    RouterState,
    ServerStatus,
    ShadowDivergence,
    SlotState,
)

STAMP = Time(sec=3, nanosec=4)
STAMP_NS = 3_000_000_004
# strings of all lengths move the padding of what follows
text = st.text(st.characters(codec='ascii', exclude_characters='\x00'), max_size=9)


def agrees(read: object, made: object, *names: str) -> None:
    assert {n: getattr(read, n) for n in names} == {n: getattr(made, n) for n in names}


@given(text, text, text, st.integers(0, 6))
def test_a_status_is_read_as_it_was_made(server, policy, device, state):
    made = ServerStatus(
        stamp=STAMP,
        server=server,
        slot='a',
        policy=policy,
        policy_type='act',
        device=device,
        state=state,
        text='words',
        load=0.5,
        inference_ms_p50=1.25,
        inference_ms_p99=2.5,
        queue_wait_ms_p99=9.0,
        requests=7,
        dropped=[DropCount(reason='late', count=3)],
    )
    read = fleet_decoding.decode_status(serialize_message(made))
    agrees(read, made, 'server', 'slot', 'policy', 'text', 'load')
    agrees(read, made, 'inference_ms_p50', 'inference_ms_p99')
    assert read.stamp_ns == STAMP_NS
    assert read.state == constant_name(fleet_decoding.SERVER_STATES, state)


@given(st.lists(st.tuples(text, text, st.lists(text, max_size=2)), max_size=3), text)
def test_a_router_is_read_as_it_was_made(slots, words):
    made = RouterState(
        stamp=STAMP,
        server='/policy_router',
        health='healthy',
        text=words,
        split_percent=30,
        sessions=4,
        slots=[
            SlotState(
                slot=f'{number}',
                policy=policy,
                state=SlotState.BARRED,
                text=reason,
                share_percent=number,
                replicas=[ReplicaState(server=name, text=words) for name in replicas],
            )
            for number, (policy, reason, replicas) in enumerate(slots)
        ],
        hedges=1 << 40,
        dropped=[DropCount(reason='late', count=3)],
    )
    read = fleet_decoding.decode_router(serialize_message(made))
    agrees(read, made, 'server', 'health', 'text', 'split_percent', 'sessions', 'hedges')
    assert (read.stamp_ns, read.dropped) == (STAMP_NS, (('late', 3),))
    for found, slot in zip(read.slots, made.slots, strict=True):
        agrees(found, slot, 'slot', 'policy', 'text', 'share_percent')
        assert found.state == 'barred'


@given(text, text, text)
def test_a_canary_is_read_as_it_was_made(candidate, champion, words):
    made = CanaryState(
        stamp=STAMP,
        state=CanaryState.ROLLED_BACK,
        slot='b',
        candidate_policy=candidate,
        champion_policy=champion,
        step=1,
        step_count=3,
        share_percent=25,
        text=words,
        estimated_remaining_episodes=-1,
        candidate_successes=1 << 40,
        log10_evidence_not_worse=1.5,
        log10_evidence_worse=2.5,
        step_elapsed_s=9.0,
    )
    read = fleet_decoding.decode_canary(serialize_message(made))
    agrees(read, made, 'slot', 'candidate_policy', 'champion_policy', 'step', 'step_count')
    agrees(read, made, 'share_percent', 'text')
    agrees(read, made, 'log10_evidence_not_worse', 'log10_evidence_worse')
    assert (read.stamp_ns, read.state) == (STAMP_NS, 'rolled_back')


@given(text, text)
def test_a_divergence_is_read_as_it_was_made(client, policy):
    made = ShadowDivergence(
        stamp=STAMP,
        client_id=client,
        episode_id='ep',
        seq=1 << 40,
        live_policy=policy,
        shadow_policy='s@1',
        rows=3,
        divergence=0.5,
        divergence_in_spreads=9.0,
        action_names=['a'],
    )
    read = fleet_decoding.decode_divergence(serialize_message(made))
    agrees(read, made, 'client_id', 'seq', 'shadow_policy', 'rows', 'divergence')
    assert read.stamp_ns == STAMP_NS


@given(text, text)
def test_an_outcome_is_read_as_it_was_made(client, words):
    made = EpisodeOutcome(
        stamp=STAMP,
        client_id=client,
        episode_id='ep',
        outcome=EpisodeOutcome.FAILURE,
        duration_s=1.5,
        score=0.25,
        text=words,
    )
    read = fleet_decoding.decode_outcome(serialize_message(made))
    agrees(read, made, 'client_id', 'episode_id', 'duration_s', 'score', 'text')
    assert (read.stamp_ns, read.outcome) == (STAMP_NS, 'failure')


DECODERS = {
    fleet_decoding.decode_status: ServerStatus(server='/s', text='t'),
    fleet_decoding.decode_router: RouterState(slots=[SlotState(replicas=[ReplicaState()])]),
    fleet_decoding.decode_canary: CanaryState(text='t'),
    fleet_decoding.decode_divergence: ShadowDivergence(client_id='c'),
    fleet_decoding.decode_outcome: EpisodeOutcome(text='t'),
}


@pytest.mark.parametrize('decode', DECODERS)
def test_a_cut_message_is_refused(decode):
    raw = serialize_message(DECODERS[decode])
    decode(raw)
    for size in range(20):
        with pytest.raises(Malformed):
            decode(raw[:size])
