# SPDX-License-Identifier: Apache-2.0
"""
What a recorder costs: the control steps of a robot beside it, and the memory of a highlight.

The real edge at 30 Hz with two cameras of 480x640, raw; a recorder runs in every second block.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import cycle, islice
from pathlib import Path
import shutil
import time

from rclpy.serialization import serialize_message

from benchmarks.control_loop.edge_process import HEIGHT, ROBOT, streaming_edge, WIDTH
from benchmarks.harness.camera_images import camera_images
from benchmarks.harness.nodes import spinning_node
from benchmarks.harness.processes import child, cpu_s
from benchmarks.recording.example_bag import image
from benchmarks.recording.kills import record_command
from benchmarks.results.report import Case
from lerobot_serve.ros import qos
from lerobot_serve.telemetry.durations import summarize
from lerobot_serve.tools.bags.message import BagMessage, COMPRESSED_TYPE
from lerobot_serve.tools.recorder.frames import compressed
from lerobot_serve.tools.recorder.highlight import MemoryRing
from lerobot_serve.tools.recorder.strategy_writer import SortedMessage
from lerobot_serve_interfaces.msg import ExecutedAction

ABOUT = 'the control steps of a robot beside a recorder, and the memory of a highlight'
FPS, BEFORE_S = 30, 10.0
BLOCKS, BLOCK_S, SETTLE_S = 4, 20.0, 4.0
GOAL_RATIO, GOAL_MB = 1.05, 40.0
STRATEGY = 'episodic'
PARAMETERS = {'cameras': f'2 x {HEIGHT}x{WIDTH} raw', 'rate_hz': FPS}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases. Main thread. Raises UserError."""
    return [ring_memory(), beside_a_recorder(folder)]


def ring_memory() -> Case:
    """Fill the memory of a highlight with two cameras."""
    pictures = [camera_images(HEIGHT, WIDTH) for _ in range(2)]
    frames = [serialize_message(image(frame)) for seen in pictures for frame in seen.values()]
    ring, durations_ms = MemoryRing(BEFORE_S, 1 << 30), []
    for number, raw in enumerate(islice(cycle(frames), int(2 * FPS * BEFORE_S) + 100)):
        begin_s = time.perf_counter()
        data = compressed(raw) or raw
        durations_ms.append(1e3 * (time.perf_counter() - begin_s))
        message = BagMessage('/camera/compressed', COMPRESSED_TYPE, 0, data)
        ring.add(SortedMessage(message, None), number / (2 * FPS))
    megabytes = ring.bytes / 1e6
    return Case(
        'ring',
        parameters={'seconds': BEFORE_S, 'ring_mb': round(megabytes, 1)},
        counts={'frames': len(ring)},
        series_ms={'compress': durations_ms},
        goals={f'at most {GOAL_MB:g} MB': megabytes <= GOAL_MB},
    )


def beside_a_recorder(folder: Path) -> Case:
    """Compare the control steps of blocks with a recorder and without one."""
    actions: list[ExecutedAction] = []
    with spinning_node('bench_recorder') as node, streaming_edge(node, [], folder):
        node.create_subscription(
            ExecutedAction,
            f'{ROBOT}/edge_controller/executed_action',
            actions.append,
            qos.EXECUTED_ACTION,
        )
        return compare(folder, actions)


def compare(folder: Path, actions: list[ExecutedAction]) -> Case:
    intervals: dict[bool, list[float]] = {False: [], True: []}
    shares, bags = [], folder / 'recording_bags'
    for number in range(2 * BLOCKS):
        # off on, on off: a drift of the machine is in both
        is_on = number % 4 in (1, 2)
        shutil.rmtree(bags, ignore_errors=True)
        log = folder / f'recording_{number}.log'
        with child(record_command(bags), log) if is_on else nullcontext() as process:
            time.sleep(SETTLE_S)
            begin, begin_cpu_s = len(actions), cpu_s(process.pid) if process else 0.0
            time.sleep(BLOCK_S)
            intervals[is_on] += step_intervals_ms(actions[begin:])
            if process:
                shares.append((cpu_s(process.pid) - begin_cpu_s) / BLOCK_S)
    size_mb = sum(file.stat().st_size for file in bags.rglob('*.mcap')) / 1e6
    shutil.rmtree(bags, ignore_errors=True)
    off, on = (summarize(intervals[key])['p99'] for key in (False, True))
    return Case(
        'control steps',
        parameters={
            'strategy': STRATEGY,
            'blocks': BLOCKS,
            'block_s': BLOCK_S,
            'recorder_share_of_a_core': round(sum(shares) / len(shares), 3),
            'last_block_mb': round(size_mb, 1),
        },
        series_ms={'interval without': intervals[False], 'interval with': intervals[True]},
        ratios={'with to without': {'p99': round(on / off, 4)}},
        goals={f'p99 at most {GOAL_RATIO:g} x': on / off <= GOAL_RATIO},
    )


def step_intervals_ms(actions: list[ExecutedAction]) -> list[float]:
    """Return the time between the commands of consecutive control steps."""
    stamps = {
        each.control_step: each.stamp.sec * 1e3 + each.stamp.nanosec / 1e6 for each in actions
    }
    return [stamps[n] - stamps[n - 1] for n in stamps if n - 1 in stamps]
