# SPDX-License-Identifier: Apache-2.0
"""A bag is judged like a trace, as far as it tells what is needed."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path

from msgspec import structs
import numpy as np
import pytest
from support.replacing import replace
from support.tools.audit_rig import drive, result_of
from support.tools.bag_rig import write
from support.tools.recorder_rig import text, TEXT_TYPE
from support.tools.replay_rig import answered, as_messages, episodes

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.types import Time
from lerobot_serve.tools.audit.engine import AuditResult, CheckStatus, run_audit
from lerobot_serve.tools.bags.message import BagMessage, DECISION, EXECUTED
from lerobot_serve.tools.bags.trace_view import BagTrace, SLACK_NS
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.verbs import audit as verb
from lerobot_serve.tools.stats.collect import collect_stats
from lerobot_serve.trace.format.records import ExecutedRecord

LIMITS = json.dumps(
    {
        'step_s': 0.01,
        'actions': [
            {'name': name, 'motion': 'position', 'low': -1.0, 'high': 1.0, 'max_step': 0.5}
            for name in 'ab'
        ],
    }
)
FINE = records.ExecutedAction(
    Time(1, 2),
    1,
    1,
    1,
    age_s=0.1,
    client_id='robot_1',
    episode_id='ep',
    slot='prod',
    policy='p@1',
    raw=np.zeros(2, np.float32),
    commanded=np.zeros(2, np.float32),
)


CLAMPED = records.ExecutedAction.CageResult.CLAMPED


@dataclass
class Scene:
    """Messages in the making; a control step is 10 ms."""

    messages: list[BagMessage]
    now_ns: int = 1_000_000

    def tell(self, topic: str, kind: str, data: bytes) -> None:
        self.now_ns += 10_000_000
        self.messages.append(BagMessage(topic, kind, self.now_ns, data))

    def execute(self, **changes: object) -> None:
        action = structs.replace(FINE, **changes)
        topic = f'/{action.client_id}/edge_controller/executed_action'
        self.tell(topic, EXECUTED, encode(action))

    def decide(self, slot: str, *, moved: bool = False) -> None:
        place = 7, 80, slot, 'p@1', '/server', False, False, moved, 'why', 12
        decision = records.RoutingDecision(Time(1, 2), 'robot_1', 'ep', 'ep', *place)
        self.tell('/policy_router/routing', DECISION, encode(decision))

    def last(self) -> bytes:
        return self.messages[-1].data

    def judge(self, folder: Path, **given: object) -> AuditResult:
        bag = write(folder / 'bag', self.messages)
        return run_audit([], sources=[BagTrace(bag, **given)])


@pytest.fixture
def scene() -> Scene:
    """Ten rows of one chunk, in order."""
    made = Scene([])
    made.decide('prod')
    for tick in range(1, 11):
        values = np.full(2, tick / 100, np.float32)
        made.execute(control_step=tick, chunk_row=tick, raw=values, commanded=values)
    return made


def test_what_a_bag_does_not_tell_is_not_judged(scene, tmp_path):
    found = scene.judge(tmp_path)
    for check in ('age', 'position', 'step', 'one_in_flight', 'prefix', 'whole', 'drops'):
        assert result_of(found, check).outcome is CheckStatus.NOT_JUDGED, check
    assert '--max-action-age' in result_of(found, 'age').why_not
    assert '--robot' in result_of(found, 'position').why_not
    for check in ('finite', 'rows', 'sticky'):
        assert result_of(found, check).outcome is CheckStatus.HOLDS_AS_RECORDED, check
    assert found.outcome is CheckStatus.HOLDS_AS_RECORDED
    found = scene.judge(tmp_path / 'told', max_action_age_s=0.5, limits=LIMITS)
    for check in ('age', 'position', 'step'):
        assert result_of(found, check).outcome is CheckStatus.HOLDS_AS_RECORDED, check


ROBOT_FILE = """
name: arm
fps: 100
state:
- {topic: joint_states, joints: [a, b], max_age_s: 0.5}
actions:
  a.pos: {joint: a, min: -1.0, max: 1.0, max_step: 0.5}
  b.pos: {joint: b, min: -1.0, max: 1.0, max_step: 0.5}
cameras: {}
command: {topic: command, type: std_msgs/Float64MultiArray}
"""


def test_the_robot_file_in_the_bag_has_the_limits(scene, tmp_path):
    place = '/robot_1/edge_controller/robot_file'
    first = BagMessage(place, TEXT_TYPE, 1_000_001, text(ROBOT_FILE))
    scene.messages.insert(0, first)
    found = scene.judge(tmp_path, limits_in=verb.limits_in)
    for check in ('position', 'step'):
        assert result_of(found, check).outcome is CheckStatus.HOLDS_AS_RECORDED, check
    # beyond the limits of that file
    scene.execute(control_step=11, commanded=np.array([0.2, 9.0]), cage_result=CLAMPED)
    found = scene.judge(tmp_path / 'far', limits_in=verb.limits_in)
    assert result_of(found, 'position').outcome is CheckStatus.VIOLATED
    # what is not a robot file says so, and nothing is judged by it
    scene.messages[0] = first._replace(data=text('actions: {}'))
    found = scene.judge(tmp_path / 'none', limits_in=verb.limits_in)
    assert result_of(found, 'position').outcome is CheckStatus.NOT_JUDGED
    assert 'the robot file in the bag: ' in result_of(found, 'position').why_not


@pytest.mark.parametrize(
    ('check', 'changes'),
    [
        ('age', {'age_s': 0.7}),
        ('age', {'age_s': float('nan')}),
        ('finite', {'commanded': np.array([0.0, np.nan]), 'cage_result': CLAMPED}),
        ('position', {'commanded': np.array([0.2, 1.5]), 'cage_result': CLAMPED}),
        ('step', {'commanded': np.array([0.9, 0.1]), 'cage_result': CLAMPED}),
        ('rows', {'chunk_row': 2}),
        ('rows', {'raw': np.ones(2)}),
        ('sticky', {'slot': 'b'}),
    ],
)
def test_violations_are_found(scene, tmp_path, check, changes):
    scene.execute(**{'control_step': 11, 'chunk_row': 11, **changes})
    found = scene.judge(tmp_path, max_action_age_s=0.5, limits=LIMITS)
    result = result_of(found, check)
    assert result.outcome is CheckStatus.VIOLATED
    # message 12 of the bag, behind the decision and ten rows
    assert [violation.line for violation in result.shown] == [12]


def test_a_decision_explains_another_slot(scene, tmp_path):
    scene.decide('b', moved=True)
    scene.execute(control_step=11, chunk_row=11, slot='b')
    found = scene.judge(tmp_path)
    assert result_of(found, 'sticky').outcome is CheckStatus.HOLDS_AS_RECORDED
    assert found.joined == 1


def test_robots_are_judged_one_by_one(scene, tmp_path):
    scene.execute(client_id='robot_2', control_step=500, seq=900, chunk_row=3)
    scene.execute(control_step=11, chunk_row=11)
    found = scene.judge(tmp_path)
    assert result_of(found, 'rows').outcome is CheckStatus.HOLDS_AS_RECORDED
    roles = sorted((run.role, run.node) for run in found.runs)
    assert roles == [('edge', 'robot_1'), ('edge', 'robot_2'), ('router', '/policy_router')]


@pytest.mark.parametrize('epoch', [5, 2**31 + 500])
def test_an_edge_that_was_started_again_is_another_run(tmp_path, epoch):
    """Its epochs begin at any number, which is earlier than before for one half of them."""
    scene = Scene([])
    scene.decide('prod')
    for session_epoch in (1000, epoch):
        for tick in range(1, 11):
            scene.execute(control_step=tick, chunk_row=tick, session_epoch=session_epoch)
    found = scene.judge(tmp_path)
    assert result_of(found, 'rows').outcome is CheckStatus.HOLDS_AS_RECORDED
    edges = [run for run in found.runs if run.role == 'edge']
    assert [(run.node, run.lines, run.is_complete) for run in edges] == [
        ('robot_1', 10, False),
        ('robot_1', 10, False),
    ]


def test_two_edges_with_one_name_are_one_robot(scene, tmp_path):
    for tick in range(1, 11):
        scene.execute(control_step=500 + tick, chunk_row=tick, seq=2)
        scene.execute(control_step=tick, chunk_row=tick)
        scene.messages[-1] = scene.messages[-1]._replace(topic='/other/executed_action')
    found = scene.judge(tmp_path)
    assert result_of(found, 'rows').outcome is CheckStatus.VIOLATED
    assert [run.role for run in found.runs] == ['router', 'edge']


def test_traces_beside_a_bag_are_judged_too(scene, tmp_path, capsys):
    """The folder of an incident: a bag, and the traces of another robot and its router."""
    old = drive(4)
    old.edge[old.index('edge', 'executed', 0, rung='policy')]['age_s'] = 9.0
    folder = write(tmp_path / 'incident', scene.messages)
    edge, router = old.write(folder)
    assert main(['audit', str(folder), '--json']) == 3
    runs = json.loads(capsys.readouterr().out)['runs']
    assert sorted(run['file'] for run in runs) == sorted(map(str, [folder, folder, edge, router]))


# requests


def timed(gap_ns: int) -> list[BagMessage]:
    """Return requests, each `gap_ns` behind the answer to the one before."""
    messages, now_ns = [], 10**12
    for message in as_messages(answered(episodes(1))):
        is_request = len(messages) % 2 == 0
        now_ns += gap_ns if is_request else 200_000_000
        messages.append(message._replace(stamp_ns=now_ns))
    return messages


@pytest.mark.parametrize(
    ('gap_ns', 'expected'),
    [
        (1_000_000, CheckStatus.HOLDS_AS_RECORDED),
        # the recorder heard them in another order
        (-SLACK_NS + 1_000_000, CheckStatus.HOLDS_AS_RECORDED),
        (-SLACK_NS - 1_000_000, CheckStatus.VIOLATED),
    ],
)
def test_one_in_flight(tmp_path, gap_ns, expected):
    found = Scene(timed(gap_ns)).judge(tmp_path)
    assert result_of(found, 'one_in_flight').outcome is expected


def test_a_request_that_the_recorder_missed_proves_nothing(tmp_path):
    found = Scene(timed(1_000_000)[:2] + timed(1_000_000)[4:]).judge(tmp_path)
    assert result_of(found, 'ended').outcome is CheckStatus.NOT_JUDGED


def test_what_a_router_hears_of_a_shadow_is_no_slot_of_the_episode(tmp_path):
    pairs = answered(episodes(1))
    messages = as_messages(pairs)
    for _, raw in pairs:
        shadow = replace(wire_chunk.decode(raw), slot='b', policy='shadow@1')
        data = wire_chunk.encode(shadow)
        messages.append(messages[1]._replace(topic='/r/replies/shadow', data=data))
    found = Scene(messages).judge(tmp_path)
    assert result_of(found, 'sticky').outcome is CheckStatus.HOLDS_AS_RECORDED


def test_sums_of_a_bag(scene, tmp_path):
    scene.messages += timed(1_000_000)
    bag = write(tmp_path / 'bag', scene.messages)
    stats = collect_stats([], sources=[BagTrace(bag)])
    # the null policy answers as another one than the actions name
    assert sum(tally.actions for tally in stats.tallies.values()) == 10
    requests = [tally for tally in stats.tallies.values() if tally.requests]
    assert sum(tally.requests for tally in requests) == 4
    assert {key.role for key in stats.tallies} == {'edge', 'router'}


def test_what_cannot_be_read_is_said(scene, tmp_path):
    scene.tell('/robot_1/edge_controller/executed_action', EXECUTED, b'nonsense')
    bag = BagTrace(write(tmp_path / 'bag', scene.messages))
    assert sum(isinstance(entry.record, ExecutedRecord) for entry in bag.read()) == 10


def test_a_status_of_later_days(tmp_path):
    pairs = [
        (asked, wire_chunk.encode(Chunk(wire_chunk.decode(raw).header, 'robot_1', 'e', status=77)))
        for asked, raw in answered(episodes(1))
    ]
    bag = BagTrace(write(tmp_path / 'bag', as_messages(pairs)))
    statuses = {getattr(entry.record, 'status', None) for entry in bag.read()}
    assert statuses == {None, '77'}


def test_decisions_of_an_older_bag_have_no_version_of_the_split(scene):
    scene.decide('a')
    assert scene.messages[-1].record().split_version == 12
    # it ends with the reason, before the version and what aligns it
    older = scene.last()[: scene.last().index(b'why') + len(b'why\0')]
    found = decode(records.RoutingDecision, older)
    assert (found.slot, found.reason, found.split_version) == ('a', 'why', 0)
