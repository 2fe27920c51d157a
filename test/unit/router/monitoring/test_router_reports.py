# SPDX-License-Identifier: Apache-2.0
"""What the router tells of itself: states, shares, counts and diagnostics."""

from __future__ import annotations

from types import SimpleNamespace

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
import pytest
from support.golden import listed
from support.replacing import replace
from support.router.router_core_rig import RoutingRig, TWO_SLOTS

from lerobot_serve.contract.records import GetStatusResponse
from lerobot_serve.router.monitoring import metrics, reports
from lerobot_serve.router.replicas.slot import SlotDrain
from lerobot_serve_interfaces.msg import ReplicaState, ServerStatus, ShadowSummary, SlotState

STAMP = Time(sec=7)
LONG = 'x' * 3000


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**how: object) -> RoutingRig:
        made.append(RoutingRig(tmp_path / str(len(made)), **how))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make):
    return make()


def state(rig: RoutingRig, split_percent: int = 50, drops: dict[str, int] | None = None):
    rig.core.change_parameters(replace(rig.core.parameters, split_percent=split_percent))
    return reports.router_state(
        rig.core.table,
        rig.core.dispatcher.hedging,
        drops or {},
        context=replace(rig.context, stamp=lambda: STAMP),
        storage_problem=rig.core.writer.text,
    )


def shares(rig: RoutingRig, split_percent: int = 50) -> list[int]:
    return [slot.share_percent for slot in state(rig, split_percent).slots]


def states(rig: RoutingRig) -> list[int]:
    return [slot.state for slot in state(rig).slots]


def drain(rig: RoutingRig, slot: str) -> None:
    rig.slots[slot].health.mark_unhealthy('timeout', rig.now_ns)


def test_both_slots_are_healthy_and_get_what_the_split_says(rig):
    told = state(rig, 80, {'late_reply': 3, 'no_session': 1})
    assert (told.health, told.text, told.split_percent) == ('healthy', '', 80)
    assert [(s.slot, s.state, s.share_percent) for s in told.slots] == [
        ('a', SlotState.HEALTHY, 80),
        ('b', SlotState.HEALTHY, 20),
    ]
    assert [s.policy for s in told.slots] == ['act@a', 'act@b']
    assert [[r.server for r in s.replicas] for s in told.slots] == [['/a1', '/a2'], ['/b1']]
    assert told.late_replies == 3
    assert [(drop.reason, drop.count) for drop in told.dropped] == [
        ('late_reply', 3),
        ('no_session', 1),
    ]
    assert (told.server, told.stamp.sec, told.sessions) == ('/policy_router', 7, 0)


@pytest.mark.parametrize('split_percent', [0, 30, 100])
def test_a_slot_that_is_not_healthy_gives_its_share_to_the_other(rig, split_percent):
    drain(rig, 'b')
    assert states(rig) == [SlotState.HEALTHY, SlotState.PROBING]
    # one without a share takes over where it is declared to: see spare
    assert shares(rig, split_percent) == ([100, 0] if split_percent else [0, 100])
    told = state(rig)
    assert told.health == 'slot_b_drained'
    assert told.text == 'slot b: unhealthy: timeout'
    rig.slots['b'].health.mark_healthy()
    assert shares(rig, split_percent) == [split_percent, 100 - split_percent]


def test_where_no_slot_is_healthy_new_episodes_go_to_who_answers(rig):
    drain(rig, 'a')
    drain(rig, 'b')
    assert states(rig) == [SlotState.PROBING, SlotState.PROBING]
    assert state(rig).health == 'unavailable'
    assert shares(rig, 30) == [30, 70]
    # a drained slot gets none, whatever happens to the other one
    rig.slots['b'].drain = SlotDrain('mine', rig.now_ns)
    assert states(rig) == [SlotState.PROBING, SlotState.DRAINED]
    assert shares(rig, 30) == [100, 0]
    rig.away('/a1', '/a2')
    assert states(rig) == [SlotState.UNAVAILABLE, SlotState.DRAINED]
    assert shares(rig, 30) == [0, 0]


def test_a_slot_nobody_was_heard_of_is_down_and_says_what_to_look_at(make):
    rig = make(heard=False)
    (a, b) = state(rig).slots
    assert (a.state, b.state) == (SlotState.UNAVAILABLE, SlotState.UNAVAILABLE)
    assert [r.state for r in a.replicas] == [ReplicaState.UNKNOWN] * 2
    assert a.text.count('no status received') == 2
    assert a.policy == ''


def test_one_slot_gets_everything_while_it_is_healthy(make):
    rig = make(slot_prod=('/one',))
    assert shares(rig, 0) == [100]
    drain(rig, 'prod')
    # there is no other: episodes begin there all the same
    assert shares(rig) == [100]
    rig.slots['prod'].drain = SlotDrain('mine', rig.now_ns)
    assert shares(rig) == [0]
    assert state(rig).health == 'unavailable'


def test_replicas_tell_their_state_and_counts(rig):
    rig.hear('/a2', policy='other@1')
    replica = rig.replicas['/a1']
    for _ in range(40):
        replica.latency.add(12.0)
    replica.counts.update(requests=40, chunks=38, failures=2, hedges=1, probes=3)
    replica.sessions = 2
    first, second = state(rig).slots[0].replicas
    assert (first.state, first.text, first.slot) == (ReplicaState.READY, '', 'a')
    assert (first.latency_ms_p50, first.latency_ms_p95) == (12.0, 12.0)
    assert (first.requests, first.chunks, first.requests_failed) == (40, 38, 2)
    assert (first.hedges, first.probes, first.sessions, first.load) == (1, 3, 2, 0.25)
    assert second.state == ReplicaState.POLICY_MISMATCH
    assert second.policy == 'other@1'
    assert 'must serve the same policy' in second.text
    assert (second.latency_ms_p50, second.latency_ms_p95) == (0.0, 0.0)
    rig.hear('/a2', active=False, text='loading the policy')
    assert state(rig).slots[0].replicas[1].state == ReplicaState.UNAVAILABLE
    assert state(rig).slots[0].replicas[1].text == 'loading the policy'
    rig.replicas['/a1'].health.mark_unhealthy('timeout', rig.now_ns)
    assert state(rig).slots[0].replicas[0].state == ReplicaState.UNHEALTHY


def test_no_text_is_too_long_for_its_message(make):
    servers = tuple(f'/{"n" * 200}{i}' for i in range(8))
    rig = make(slot_a=servers, slot_b=('/b1',))
    for server in servers:
        rig.hear(server, policy='p' * 256, active=False, text=LONG)
    drain(rig, 'b')
    rig.slots['b'].health.reason = LONG
    told = state(rig)
    assert [len(slot.text) for slot in told.slots] == [1024, 1024]
    assert len(told.text) == 1024
    reports.diagnostics(told, name='/policy_router')
    status(rig, ServerStatus.ACTIVE, LONG)
    assert all(len(replica.text) == 1024 for replica in told.slots[0].replicas)


def status(
    rig: RoutingRig | None, server_state: int, text: str = '', **drops: int
) -> ServerStatus:
    return reports.server_status(
        rig.core.table if rig else None,
        drops,
        server_state=(server_state, text),
        stamp=STAMP,
        server='/policy_router',
    )


def test_its_status_is_a_policy_servers(rig):
    rig.robot()
    stats = rig.core.table.stats.slot('b')
    stats.requests, stats.chunks = 5, 4
    told = status(rig, ServerStatus.ACTIVE, superseded=2)
    assert (told.state, told.policy_type, told.policy) == (
        ServerStatus.ACTIVE,
        'router',
        'act@a|act@b',
    )
    assert (told.active_sessions, told.max_sessions) == (1, 24)
    assert (told.requests, told.chunks, told.superseded) == (5, 4, 2)
    assert (told.load, told.warmed_up) == (0.25, True)
    rig.away('/a1', '/a2', '/b1')
    told = status(rig, ServerStatus.ACTIVE)
    assert (told.max_sessions, told.load, told.warmed_up) == (0, 0.0, False)
    told = status(None, ServerStatus.UNCONFIGURED, 'configure it', no_session=1)
    assert (told.policy, told.warmed_up, told.text) == ('', False, 'configure it')
    assert told.dropped[0].reason == 'no_session'


def contract(**fields: object) -> GetStatusResponse:
    whole = {
        'state_names': ('x',),
        'action_names': ('x',),
        'trained_fps': 30.0,
        'observation_steps': 2,
        'observation_stride_steps': 3,
        'default_task': 'fold',
        'task_pinned': True,
        'chunk_size': 50,
        'supports_rtc': True,
    }
    return GetStatusResponse(**{**whole, **fields})


def test_what_is_described_holds_in_every_slot(rig):
    replies = contract(), contract(chunk_size=30, supports_rtc=False)
    told = reports.status_reply(replies)
    assert (told.chunk_size, told.supports_rtc) == (30, False)
    assert (list(told.action_names), told.trained_fps, told.default_task) == (['x'], 30.0, 'fold')
    assert (told.observation_steps, told.observation_stride_steps) == (2, 3)
    assert told.schema_version_min <= told.schema_version_max


def test_before_anything_is_known_the_versions_are_told(rig):
    for replies in ((), rig.core.session_manager.status_replies):
        told = reports.status_reply(replies)
        assert told.schema_version_max >= told.schema_version_min >= 1
        assert (list(told.action_names), told.chunk_size) == ([], 0)


@pytest.mark.parametrize(
    ('bad', 'levels'),
    [
        ('', [DiagnosticStatus.OK] * 3),
        ('b', [DiagnosticStatus.WARN, DiagnosticStatus.OK, DiagnosticStatus.WARN]),
        ('ab', [DiagnosticStatus.ERROR, DiagnosticStatus.WARN, DiagnosticStatus.WARN]),
    ],
)
def test_diagnostics_have_a_status_for_the_router_and_one_a_slot(rig, bad, levels):
    for slot in bad:
        drain(rig, slot)
    told = reports.diagnostics(state(rig, 50, {'no_session': 2}), name='/policy_router')
    assert told.header.stamp.sec == 7
    assert [each.level for each in told.status] == levels
    assert [each.name for each in told.status] == [
        '/policy_router',
        '/policy_router: slot a',
        '/policy_router: slot b',
    ]
    values = {value.key: value.value for value in told.status[0].values}
    assert (values['sessions'], values['dropped no_session']) == ('0', '2')
    slots = [{v.key: v.value for v in each.values} for each in told.status[1:]]
    assert slots[0]['replica /a1'] == 'ready'
    assert slots[1]['policy'] == 'act@b'
    if bad == 'b':
        assert told.status[0].message == 'slot_b_drained: slot b: unhealthy: timeout'
        assert told.status[1].message == 'act@a, 100 % of new episodes'
        assert told.status[2].message == 'unhealthy: timeout'


def test_a_problem_of_the_router_beside_healthy_slots_is_not_called_healthy(rig):
    now = state(rig)
    now.text = 'the database is away'
    told = reports.diagnostics(now, name='/policy_router').status[0]
    assert (told.level, told.message) == (DiagnosticStatus.WARN, 'the database is away')


def test_the_log_says_what_goes_where(make):
    rig = make(heard=False, **TWO_SLOTS)
    rig.hear('/b1')
    lines = reports.describe_slots(rig.core.table, rig.now_ns)
    assert lines[0].startswith(
        'slot a (/a1, /a2): no policy yet, 0 % of the episodes; /a1: no status'
    )
    assert lines[1] == 'slot b (/b1): act@b, 100 % of the episodes'


@pytest.mark.golden
def test_the_metrics_are_what_was_agreed(rig, golden):
    shared = SimpleNamespace(routers=2, leads=True, is_away=False)
    shadow = ShadowSummary(hours_in_shadow=1.0, samples=1)
    found = [
        *metrics.collect(rig.core, {}),
        *metrics.shared_state_metrics(shared),
        *metrics.shadow_metrics(shadow),
    ]
    golden.holds('metrics/router.txt', listed(found))


def test_what_the_trace_lost_is_told_with_the_drops():
    writer = SimpleNamespace(losses={'trace_overflow': 2})
    recording = SimpleNamespace(recorder=SimpleNamespace(writer=writer))
    assert metrics.trace_losses(recording) == {'trace_overflow': 2}
    assert metrics.trace_losses(SimpleNamespace(recorder=None)) == metrics.trace_losses(None) == {}
