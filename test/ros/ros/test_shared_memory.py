# SPDX-License-Identifier: Apache-2.0
"""Shared memory of Fast DDS: no process leaves any, and what a killed one left is removed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile

import pytest
from rclpy.action import ActionClient
from std_msgs.msg import UInt32

from lerobot_serve.ros.node.steady_clock import SteadyClockActionServer, SteadyClockNode
from lerobot_serve.ros.process import node_runtime
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.shared_memory import segments as shared_memory
from lerobot_serve_interfaces.action import PredictChunk

NAME = 'fastrtps_0123456789abcdef'
RUNS = """
import rclpy, signal, sys
from lerobot_serve.shared_memory import segments as shared_memory
rclpy.init()
node = rclpy.create_node('runs')
print(*shared_memory.own_segments(
    shared_memory.read_memory_map(), shared_memory.list_locked_files()
), flush=True)
signal.pause()
"""
# the exit handlers run before the segments are removed
REFUSED = """
import atexit, sys
from lerobot_serve.entry_points import run_main
from lerobot_serve.shared_memory import segments as shared_memory
atexit.register(lambda: print(*shared_memory.own_segments(
    shared_memory.read_memory_map(), shared_memory.list_locked_files()
)))
run_main('lerobot_serve.edge.node')
"""


@pytest.fixture
def folder():
    """A folder in the file system of shared memory, so that segments can be linked into it."""
    with tempfile.TemporaryDirectory(dir=shared_memory.FOLDER) as name:
        yield Path(name)


def segment(folder: Path, name: str = NAME) -> Path:
    """Make a segment and its lock file, which nobody holds."""
    for suffix in ('', shared_memory.LOCK_FILE_SUFFIX):
        (folder / f'{name}{suffix}').write_bytes(b'')
    return folder / name


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_segment_goes_when_its_process_is_killed_and_not_while_it_runs_or_is_stopped(folder):
    process = subprocess.Popen([sys.executable, '-c', RUNS], stdout=subprocess.PIPE, text=True)
    try:
        segments = [Path(path) for path in process.stdout.readline().split()]
        assert segments
        pairs = [Path(f'{s}{end}') for s in segments for end in ('', '_el')]
        for file in pairs:
            os.link(file, folder / file.name)
        assert shared_memory.remove_dead_segments(folder, 0.0) == 0
        process.send_signal(signal.SIGSTOP)
        assert shared_memory.remove_dead_segments(folder, 0.0) == 0
        assert files(folder) == {file.name for file in pairs}
    finally:
        process.kill()
        process.communicate()
    assert shared_memory.remove_dead_segments(folder, 0.0) == len(segments)
    assert files(folder) == set()
    for file in pairs:
        file.unlink(missing_ok=True)


def test_a_young_segment_stays_since_its_owner_may_be_about_to_lock_it(folder):
    segment(folder)
    assert shared_memory.remove_dead_segments(folder) == 0
    assert len(files(folder)) == 2


def test_a_segment_of_another_user_stays(folder, monkeypatch):
    segment(folder)
    monkeypatch.setattr(os, 'getuid', lambda: 12345)
    assert shared_memory.remove_dead_segments(folder, 0.0) == 0
    assert len(files(folder)) == 2


def test_a_locked_segment_stays(folder):
    held = segment(folder)
    with open(f'{held}_el') as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert shared_memory.remove_dead_segments(folder, 0.0) == 0
    assert shared_memory.remove_dead_segments(folder, 0.0) == 1


@pytest.mark.parametrize(
    'name', ['fastrtps_port7000', 'fastrtps_', 'fastened_01', 'sem.fastrtps_01', 'other']
)
def test_other_files_stay(name, folder):
    segment(folder, name)
    assert shared_memory.remove_dead_segments(folder, 0.0) == 0
    assert len(files(folder)) == 2


def test_a_link_in_place_of_a_lock_file_is_not_followed(folder, tmp_path):
    (folder / NAME).write_bytes(b'')
    (folder / f'{NAME}_el').symlink_to(tmp_path / 'precious')
    (tmp_path / 'precious').write_bytes(b'')
    assert shared_memory.remove_dead_segments(folder, 0.0) == 0
    assert (tmp_path / 'precious').exists()


def test_a_segment_alone_counts_once_its_lock_file_is_there(folder):
    (folder / f'{NAME}_el').write_bytes(b'')
    assert shared_memory.remove_dead_segments(folder, 0.0) == 1
    assert files(folder) == set()


def test_a_machine_without_shared_memory_has_nothing_to_remove(tmp_path):
    assert shared_memory.remove_dead_segments(tmp_path / 'none', 0.0) == 0


def test_each_process_looks_for_segments_of_ended_ones(monkeypatch):
    looked = []
    monkeypatch.setattr(node_runtime.segments, 'remove_dead_segments', lambda: looked.append(1))
    NodeRuntime([]).close()
    assert looked == [1]


def own_segments() -> set[Path]:
    return set(
        shared_memory.own_segments(
            shared_memory.read_memory_map(), shared_memory.list_locked_files()
        )
    )


def test_a_node_with_actions_takes_its_participant_with_it():
    before = own_segments()
    runtime = NodeRuntime([])
    node = SteadyClockNode('acts', context=runtime.context)
    server = SteadyClockActionServer(node, PredictChunk, 'act', lambda goal: PredictChunk.Result())
    client = ActionClient(node, PredictChunk, 'act')
    runtime.add(node)
    assert own_segments() - before
    runtime.close()
    # both are still referred to
    assert (server, client) and not own_segments() - before


def test_a_node_whose_subscription_a_signal_interrupted_is_destroyed_all_the_same():
    before = own_segments()
    runtime = NodeRuntime([])
    node = SteadyClockNode('interrupted', context=runtime.context)
    half = node.create_subscription(UInt32, 'half', lambda _: None, 10)
    whole = node.create_subscription(UInt32, 'whole', lambda _: None, 10)
    # registered after the subscription itself
    handlers = list(half.event_handlers)
    for handler in handlers:
        node._Node__waitables.remove(handler)
    runtime.add(node)
    runtime.close()
    # a process that is interrupted ends with those
    for left in (*handlers, half):
        left.destroy()
    assert whole and not own_segments() - before


def test_a_node_that_is_refused_while_it_is_built_leaves_no_segment():
    ended = subprocess.run(
        [sys.executable, '-c', REFUSED], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1, ended.stderr
    segments = ended.stdout.split()
    assert segments, ended.stderr
    assert not [path for path in segments if Path(path).exists()]


OPENS_A_PEER = """
import mmap, sys
from pathlib import Path
from lerobot_serve.shared_memory import segments as shared_memory
segment = Path(sys.argv[1])
held = open(f'{segment}_el'), open(segment, 'r+b')
mapped = mmap.mmap(held[1].fileno(), 0)
seen = shared_memory.read_memory_map(), shared_memory.list_open_files()
assert segment in shared_memory.own_segments(*seen)
shared_memory.remove_own_segments()
"""


def test_the_segment_of_a_peer_stays_though_its_lock_file_is_open_here():
    """Fast DDS opens it now and then, to find out whether the peer runs."""
    process = subprocess.Popen([sys.executable, '-c', RUNS], stdout=subprocess.PIPE, text=True)
    try:
        segments = [Path(path) for path in process.stdout.readline().split()]
        for segment in segments:
            subprocess.run([sys.executable, '-c', OPENS_A_PEER, segment], check=True, timeout=60)
        assert segments
        assert all(segment.exists() for segment in segments)
    finally:
        process.kill()
        process.communicate()
        for segment in segments:
            shared_memory._remove(segment)


NO_FILES_LEFT = """
import os, resource, sys
from lerobot_serve.entry_points import end_process
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
end_process(7)
"""


def test_a_process_without_a_free_file_ends_with_its_status_all_the_same():
    ended = subprocess.run(
        [sys.executable, '-c', NO_FILES_LEFT], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (7, '')


def test_cleaning_keeps_no_node_from_starting(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(24, 'Too many open files')

    segment(folder)
    monkeypatch.setattr(os, 'listdir', refuse)
    assert shared_memory.remove_dead_segments(folder, 0.0) == 0


def test_a_fifo_in_place_of_a_lock_file_blocks_nothing(folder):
    os.mkfifo(folder / f'{NAME}_el')
    assert shared_memory.remove_dead_segments(folder, 0.0) == 0


def test_a_segment_that_cannot_be_removed_is_found_again(folder):
    (folder / NAME).mkdir()
    (folder / f'{NAME}_el').write_bytes(b'')
    assert shared_memory.remove_dead_segments(folder, 0.0) == 0
    assert f'{NAME}_el' in files(folder)
