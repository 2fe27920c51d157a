# SPDX-License-Identifier: Apache-2.0
"""Captures: what is kept in memory, what is written around trouble, what a full disk does."""

from __future__ import annotations

import errno
import os
import threading

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
import pytest
from support.replacing import replace
from support.server.capture_rig import ask, Captured, fails_at, NAN, rig_of, S, WALL_S
from support.server.server_core_rig import request, Rig
from support.server.worker_rig import gives, HEADER, OBSERVATION, queued, raises, ROWS

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Status
from lerobot_serve.server.observability.request_capture import (
    capture_reason,
    CapturedRequest,
    CaptureReason,
    NothingToCapture,
    OVERHEAD_BYTES,
    RequestRing,
    RETRY_S,
)
from lerobot_serve.server.observability.request_observer import make_request_observer, NodeContext
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.trace.format import incident_file
from lerobot_serve.trace.format.incident_file import read_exchanges, read_incident


@pytest.fixture
def captured(tmp_path) -> Captured:
    return Captured(tmp_path / 'captures')


@pytest.mark.parametrize(
    ('how', 'why'), [(raises(ValueError('no')), 'policy_error'), (gives(NAN), 'not_finite')]
)
def test_a_policy_that_fails_leaves_the_last_requests_of_that_robot(captured, how, why):
    rig = rig_of(captured, fails_at({4}, how), stochastic=True)
    rig.open(1)
    rig.open(2)
    ask(rig, 1, seq=1)
    ask(rig, 2, seq=1)
    ask(rig, 1, seq=2)
    chunk = ask(rig, 1, seq=3)
    captured.write()
    (name,) = captured.names()
    assert name.startswith('20250615T150640.')
    assert name.endswith(f'Z-robot_1-3-{why}.safetensors')
    incident = read_incident(captured.folder / name)
    assert incident.about['code'] == why
    assert (incident.about['client_id'], incident.about['seq']) == ('robot_1', 3)
    assert incident.about['reason'] == chunk.status_text
    assert incident.about['node'] == '/policy_server'
    assert [pair.info['seq'] for pair in incident.pairs] == [1, 2, 3]
    assert [pair.info['status'] for pair in incident.pairs] == ['ok', 'ok', why]
    request_bytes, answer, info = incident.pairs[-1]
    assert request_bytes == request(1, seq=3)
    assert wire_chunk.decode(answer).status_text == chunk.status_text
    assert info['seed'] == chunk.seed > 0
    assert (info['client_id'], info['session_epoch'], info['episode_id']) == (
        'robot_1',
        7,
        'episode_1',
    )
    assert (info['session_id'], info['task']) == ('robot_1#00000007', 'fold the towel')
    assert captured.told == [('captured', str(captured.folder / name))]


def test_a_request_stands_in_one_file(captured):
    rig = rig_of(captured, fails_at({2, 4}, gives(NAN)))
    rig.open()
    for seq in (1, 2, 3, 4):
        ask(rig, seq=seq)
    captured.write()
    seqs = [[pair.info['seq'] for pair in read_exchanges(path)] for path in captured.paths()]
    assert seqs == [[1, 2], [3, 4]]


def test_what_goes_well_and_what_robots_do_wrong_is_not_written(captured):
    rig = rig_of(captured)
    rig.open()
    ask(rig)
    rig.core.enqueue(request()[:-40], 0)
    rig.step()
    captured.write()
    assert captured.names() == []
    assert captured.told == []


def answer(status: Status = Status.OK) -> Chunk:
    return Chunk(HEADER, 'robot_1', 'episode_1', ROWS, ROWS, status=status)


@pytest.mark.parametrize(
    ('within_s', 'status', 'now_ns', 'why'),
    [
        (0.0, Status.OK, 100 * S, ''),
        (1.0, Status.OK, S, ''),
        (1.0, Status.OK, S + 1, 'too_late'),
        (1.0, Status.TOO_LATE, 0, 'too_late'),
        (1.0, Status.DRAINING, 5 * S, ''),
        (0.0, Status.BAD_OBSERVATION, 0, ''),
    ],
)
def test_late_is_what_the_robot_cannot_use(within_s, status, now_ns, why):
    asked = queued(OBSERVATION)
    session = replace(
        asked.session, request=structs.replace(asked.session.request, reply_deadline_s=within_s)
    )
    assert capture_reason(replace(asked, session=session), answer(status), now_ns) == why


def test_an_operator_gets_everything_that_is_kept(captured):
    rig = rig_of(captured)
    rig.open(1)
    rig.open(2)
    ask(rig, 1)
    ask(rig, 2)
    path = captured.capture.capture_all()
    captured.write()
    assert [pair.info['client_id'] for pair in read_exchanges(path)] == ['robot_1', 'robot_2']
    assert path.name.endswith('Z-all-0-operator.safetensors')
    with pytest.raises(NothingToCapture, match='no request since the last capture'):
        captured.capture.capture_all()


def test_the_server_tells_operators_and_the_trace_of_a_capture(tmp_path):
    informed, warned = [], []
    here = NodeContext('/policy_server', lambda: 0, warned.append, informed.append)
    parameters = ServerParameters(
        capture_folder=str(tmp_path / 'captures'), trace_folder=str(tmp_path / 'trace')
    )
    statistics = ServerStatistics()
    observer = make_request_observer(lambda: parameters, statistics, here)
    rig = Rig(gives(NAN), observer=lambda _: observer)
    rig.open()
    ask(rig)
    stop, threads = threading.Event(), []

    def start(name, target, wake):
        threads.append((threading.Thread(target=target, name=name), wake))
        threads[-1][0].start()
        return threads[-1][0]

    observer.start_threads(start, stop, [])
    stop.set()
    for thread, wake in threads:
        wake()
        thread.join(10)
    assert [thread.name for thread, _ in threads] == ['capture', 'trace']
    (path,) = (tmp_path / 'captures').iterdir()
    assert informed == [f'captured requests into {path}']
    assert read_incident(path).about['parameters']['capture_folder'] == parameters.capture_folder
    (trace,) = (tmp_path / 'trace').iterdir()
    assert f'"name":"captured","reason":"{path}"' in trace.read_text()
    assert (warned, statistics.drop_counts()) == ([], {})


def test_without_a_folder_nothing_is_captured_and_an_operator_hears_why():
    observer = make_request_observer(
        ServerParameters,
        ServerStatistics(),
        NodeContext('/s', lambda: 0, pytest.fail, pytest.fail),
    )
    with pytest.raises(NothingToCapture, match='capture_folder is empty; set it'):
        observer.capture()


# captures on the disk: names, room, what a killed process left, and a disk that is full


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


def kept(name: str, size: int) -> CapturedRequest:
    return CapturedRequest(name, replace(queued(OBSERVATION), raw=b'x' * size), b'', 0.0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just('add'), st.sampled_from('abc'), st.integers(0, 9000)),
        st.tuples(st.just('take'), st.sampled_from(['a', 'b', 'c', '']), st.just(0)),
        st.tuples(st.just('release'), st.just(''), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_ring_holds_no_more_than_it_may_and_the_newest_of_each(steps):
    ring, taken = RequestRing(10_000, limit=5), []
    line: list[CapturedRequest] = []
    for step, name, size in steps:
        if step == 'add':
            line.append(kept(name, size))
            ring.add(line[-1])
        elif step == 'take':
            got = ring.take(name)
            known = [each for each in line if each.session_id == name or not name]
            fitting = [each for each in known if each.size <= 10_000]
            # the newest ones, in their order
            assert got == fitting[len(fitting) - len(got) :]
            line = [each for each in line if each not in known]
            taken.append(got)
        elif taken:
            ring.release(taken.pop(0))
        assert len(ring) <= 5
        assert 0 <= ring.held_bytes <= 10_000
    for got in taken:
        ring.release(got)
    assert ring.held_bytes == sum(each.size for each in ring.take())


def test_a_request_counts_with_what_python_needs_for_it():
    assert kept('a', 0).size == OVERHEAD_BYTES
    ring = RequestRing(3 * OVERHEAD_BYTES)
    for _ in range(10):
        ring.add(kept('a', 0))
    assert len(ring) == 3
