# SPDX-License-Identifier: Apache-2.0
"""The memory of the strategy highlight, its triggers, and the slices of the strategy sentry."""

from __future__ import annotations

from pathlib import Path
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.recorder_rig import (
    bags,
    executed,
    JOINTS,
    messages,
    outcome,
    RecorderRig,
    state,
)

from lerobot_serve.tools.bags.message import BagMessage, EDGE_STATE, EXECUTED, TEXT_TYPE
from lerobot_serve.tools.recorder.highlight import HighlightWriter, MemoryRing, Triggers
from lerobot_serve.tools.recorder.options import RecordingRules
from lerobot_serve.tools.recorder.strategy_writer import SentryWriter, SortedMessage, whole_slices

OUTCOME_TYPE = 'lerobot_serve_interfaces/msg/EpisodeOutcome'


@pytest.fixture
def rig(tmp_path):
    rig = RecorderRig(tmp_path, RecordingRules(before=2.0, after=1.0), HighlightWriter)
    yield rig
    rig.writer.close()


def sorted_message(data: bytes, owners=None) -> SortedMessage:
    return SortedMessage(BagMessage('/a', 'a/msg/B', 1, data, 1), owners)


def reasons(*found: tuple[str, bytes]) -> list[str]:
    triggers = Triggers()
    return [triggers.find(BagMessage('/x/y', kind, 1, raw)) for kind, raw in found]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 400)), max_size=60))
def test_the_ring_keeps_what_is_young_within_its_bytes(steps):
    ring, now, kept = MemoryRing(10.0, 1000), 0.0, []
    for gap, size in steps:
        now += gap / 10
        message = sorted_message(bytes(size))
        ring.add(message, now)
        kept = [(at, each) for at, each in kept if now - at <= 10.0] + [(now, message)]
        while sum(len(each.message.data) for _, each in kept) > 1000:
            kept.pop(0)
    assert [id(each) for each in ring.of('/any')] == [id(each) for _, each in kept]
    assert ring.bytes == sum(len(each.message.data) for _, each in kept)


def test_a_condition_that_lasts_is_one_trigger():
    def act(cage: str, source: str = 'policy') -> tuple[str, bytes]:
        return EXECUTED, executed('ep', 1, cage_result=cage, source=source)

    assert reasons(act('pass'), act('clamped'), act('held'), act('pass'), act('stopped')) == [
        '',
        'cage_trip',
        '',
        '',
        'cage_trip',
    ]
    assert reasons(act('pass', 'person'), act('pass', 'person'), act('pass')) == [
        'takeover',
        '',
        '',
    ]


def test_states_and_outcomes_that_trigger():
    def told(**fields: object) -> tuple[str, bytes]:
        return EDGE_STATE, state('ep', **fields)

    assert reasons(told(), told(state='stalled'), told(state='stalled'), told()) == [
        '',
        'stall',
        '',
        '',
    ]
    # over before it was reported
    assert reasons(told(stalls=3), told(stalls=4), told(stalls=4)) == ['', 'stall', '']
    assert reasons(told(intervention='commanding'), told(intervention='lost')) == ['takeover', '']
    assert reasons((OUTCOME_TYPE, outcome('ep', 'failure')), (OUTCOME_TYPE, b'')) == [
        'failure',
        '',
    ]
    assert reasons((OUTCOME_TYPE, outcome('ep', 'success'))) == ['']


def play(rig: RecorderRig, count: int, **fields: object) -> None:
    for _ in range(count):
        rig.joints(b'%d' % rig.step)
        rig.act('ep', **fields)
        rig.wait(0.25)


def test_a_trip_saves_what_was_before_and_after(rig):
    play(rig, 40)
    assert not bags(rig.root)
    assert not list(rig.root.glob('*.recording'))
    play(rig, 1, cage_result='held')
    play(rig, 12)
    (bag,) = bags(rig.root)
    assert bag.name.startswith('arm_1_cage_trip_')
    steps = [int(each.data) for each in messages(bag) if each.topic == JOINTS]
    # 2 s before the 40th, 1 s after
    assert steps == list(range(32, 44))
    assert len({each.topic for each in messages(bag)}) == 4


def test_a_trigger_within_a_highlight_extends_it(rig):
    play(rig, 4)
    for cage_result in ('held', 'pass', 'held', 'pass', 'held'):
        play(rig, 1, cage_result=cage_result)
    play(rig, 8)
    (bag,) = bags(rig.root)
    steps = [int(each.data) for each in messages(bag) if each.topic == JOINTS]
    assert steps == list(range(12))


def test_the_button_saves_each_robot(rig):
    rig.introduce('/two/edge_controller', 'arm_2')
    play(rig, 4)
    rig.writer.save()
    play(rig, 8)
    assert [each.name.partition('_button_')[0] for each in bags(rig.root)] == ['arm_1', 'arm_2']


def test_a_highlight_that_runs_at_the_end_is_whole(rig):
    play(rig, 4)
    rig.judge('ep', 'failure')
    rig.writer.close()
    (bag,) = bags(rig.root)
    assert bag.name.startswith('arm_1_failure_')
    assert len(list(messages(bag, OUTCOME_TYPE))) == 1


def kept(root: Path) -> list[bytes]:
    slices = whole_slices(root)
    return [m.data for bag in slices for m in messages(bag) if m.topic == JOINTS]


@settings(max_examples=20, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 30), max_size=30),
    size_mb=st.sampled_from([0.0, 0.005, 0.02]),
    time_s=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_nothing_is_lost_between_slices(gaps, size_mb, time_s):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rig = RecorderRig(
            root, RecordingRules(slice_size=size_mb, slice_time=time_s), SentryWriter
        )
        for number, gap in enumerate(gaps):
            rig.joints(b'%05d' % number * 100)
            rig.wait(gap / 10)
        rig.writer.close()
        assert kept(root) == [b'%05d' % number * 100 for number in range(len(gaps))]
        for bag in bags(root):
            # each slice stands for itself
            assert len(list(messages(bag, TEXT_TYPE))) == 1


def test_slices_end_by_size_and_by_time(tmp_path):
    rig = RecorderRig(tmp_path / 'size', RecordingRules(slice_size=0.05), SentryWriter)
    for _ in range(20):
        rig.joints(bytes(10_000))
        rig.wait(0.1)
    rig.writer.close()
    assert 3 <= len(bags(tmp_path / 'size')) <= 5
    rig = RecorderRig(tmp_path / 'time', RecordingRules(slice_time=1.0), SentryWriter)
    for _ in range(40):
        rig.joints()
        rig.wait(0.1)
    rig.writer.close()
    assert len(bags(tmp_path / 'time')) == 4


def test_old_slices_go_and_others_stay(tmp_path):
    other = tmp_path / 'slice_of_mine'
    other.mkdir()
    rig = RecorderRig(tmp_path, RecordingRules(slice_time=1.0, keep_slices=2), SentryWriter)
    for _ in range(60):
        rig.joints()
        rig.wait(0.1)
    rig.writer.close()
    assert [each.name[:12] for each in whole_slices(tmp_path)] == ['slice_000005', 'slice_000006']
    assert other.is_dir()
    # the next recorder counts on
    rig = RecorderRig(tmp_path, RecordingRules(keep_slices=2), SentryWriter)
    rig.writer.close()
    assert [each.name[:12] for each in whole_slices(tmp_path)] == ['slice_000006', 'slice_000007']
