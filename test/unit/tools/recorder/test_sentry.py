# SPDX-License-Identifier: Apache-2.0
"""The slices of the strategy sentry: none of the messages is lost between two of them."""

from __future__ import annotations

from pathlib import Path
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from support.tools.recorder_rig import bags, JOINTS, messages, RecorderRig

from lerobot_serve.tools.bags.message import TEXT_TYPE
from lerobot_serve.tools.recorder.options import RecordingRules
from lerobot_serve.tools.recorder.strategies.sentry import SentryWriter, whole_slices


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
