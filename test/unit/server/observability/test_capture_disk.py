# SPDX-License-Identifier: Apache-2.0
"""Captures on the disk: names, room, what a killed process left, and a disk that is full."""

from __future__ import annotations

import errno
import os

import pytest
from support.server.capture_rig import ask, Captured, NAN, rig_of, S, WALL_S
from support.server.worker_rig import gives

from lerobot_serve.contract.schema import Status
from lerobot_serve.server.observability.capture_files import CaptureReason
from lerobot_serve.server.observability.request_capture import NothingToCapture, RETRY_S
from lerobot_serve.trace.format import incident_file
from lerobot_serve.trace.format.incident_file import read_exchanges


@pytest.fixture
def captured(tmp_path) -> Captured:
    return Captured(tmp_path / 'captures')


def test_any_name_of_a_robot_makes_a_file_of_the_folder(captured):
    path = captured.files.path(CaptureReason('not_finite', WALL_S, '../../etc/passwd\n', 3))
    assert path.parent == captured.folder
    assert path.name.endswith('-3-not_finite.safetensors')


def test_the_oldest_files_go_for_new_ones(tmp_path):
    captured = Captured(tmp_path, 12_000)
    others = [tmp_path / name for name in ('notes.txt', 'weights.safetensors')]
    for path in others:
        path.write_bytes(b'x' * 20_000)
    rig = rig_of(captured, gives(NAN))
    rig.open()
    for seq in range(1, 20):
        ask(rig, seq=seq)
        captured.write()
        ours = [path for path in captured.paths() if path not in others]
        assert sum(path.stat().st_size for path in ours) <= 12_000
        assert read_exchanges(ours[-1])[0].info['seq'] == seq
    assert 1 < len(ours) < 19
    assert all(path.exists() for path in others)


def test_what_a_killed_process_left_counts_and_goes(tmp_path):
    captured = Captured(tmp_path, 12_000)
    left = tmp_path / '20200101T000000.000Z-robot_1-3-not_finite.safetensors.part'
    left.write_bytes(b'x' * 11_000)
    rig = rig_of(captured, gives(NAN))
    rig.open()
    ask(rig)
    captured.write()
    assert not left.exists()
    assert len(captured.paths()) == 1


@pytest.fixture
def full(monkeypatch):
    """Let the disk be full; returns what ends that."""

    def write(path, pairs, about):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(incident_file, 'write_incident', write)
    return monkeypatch.undo


def test_a_full_disk_stops_capturing_and_says_so_once(captured, full):
    rig = rig_of(captured, gives(NAN))
    rig.open()
    for _ in range(3):
        assert ask(rig).status == Status.NOT_FINITE
        captured.write()
    (first, why), *others = captured.told
    assert first == 'capture_failed'
    assert 'No space left on device' in why
    assert others == [('capture_failed', '')] * 2
    with pytest.raises(NothingToCapture, match='No space left on device'):
        captured.capture.capture_all()
    captured.now_ns += int(RETRY_S * S)
    ask(rig)
    captured.write()
    assert captured.told[3:] == [('capture_failed', '')]
    # not even tried before its time
    full()
    ask(rig)
    captured.write()
    assert captured.names() == []
    captured.now_ns += int(RETRY_S * S)
    ask(rig)
    captured.write()
    assert len(captured.names()) == 1
    assert captured.capture._ring.held_bytes == 0


def test_a_folder_that_cannot_be_is_like_a_full_disk(tmp_path):
    (tmp_path / 'file').write_text('')
    captured = Captured(tmp_path / 'file' / 'captures')
    rig = rig_of(captured, gives(NAN))
    rig.open()
    ask(rig)
    captured.write()
    assert [name for name, _ in captured.told] == ['capture_failed']


def test_a_disk_that_is_slower_than_the_trouble_costs_files_and_no_memory(tmp_path):
    captured = Captured(tmp_path, 4_000)
    rig = rig_of(captured, gives(NAN))
    rig.open()
    for seq in range(1, 8):
        ask(rig, seq=seq)
        assert captured.capture._ring.held_bytes <= 4_000
    lost = captured.told.count(('capture_overflow', ''))
    assert lost > 0
    captured.write()
    assert len(captured.told) - lost == 7 - lost
    assert captured.capture._ring.held_bytes == 0
