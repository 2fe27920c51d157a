# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve record`: records topics into a bag."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli.link_options import add_observer_options, observer_settings

if TYPE_CHECKING:
    from lerobot_serve.tools.bags.recording.node import BagRecorderNode
    from lerobot_serve.zenoh.settings import ZenohSettings

HELP = 'record topics into a bag, in the format of ros2 bag'
# the node handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve record bags/monday  | stop with Ctrl-C; exit status 0 when the bag '
    'is complete, 1 when it could not be written'
)
LIMIT_MB = 10_000_000
LIMIT_S = 31_536_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'folder',
        metavar='FOLDER',
        nargs='?',
        type=Path,
        help='folder of the bag, which must not exist yet (bag_TIME)',
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        '--topic',
        dest='topics',
        metavar='NAME',
        nargs='+',
        action='extend',
        default=[],
        help='topics to record (all topics of lerobot_serve_interfaces, and /diagnostics)',
    )
    which.add_argument('--all', action='store_true', help='record every topic')
    parser.add_argument(
        '--max-size', type=float, default=0.0, metavar='MB', help='stop at this size [MB]'
    )
    add_observer_options(parser, 'record')
    parser.add_argument(
        '--duration', type=float, default=0.0, metavar='S', help='stop after this time [s]'
    )


def main(options: argparse.Namespace) -> int:
    """Record a bag; return the exit status. Raises ParameterError."""
    from datetime import datetime

    from lerobot_serve.parameters import ParameterError

    for name, value, high in (
        ('--max-size', options.max_size, LIMIT_MB),
        ('--duration', options.duration, LIMIT_S),
    ):
        if not 0 <= value <= high:
            raise ParameterError(f'{name} must be in [0, {high}] (0 for no limit), got {value:g}')
    relative = [topic for topic in options.topics if not topic.startswith('/')]
    if relative:
        raise ParameterError(f'--topic must be full names such as /{relative[0]}, got {relative}')
    zenoh = observer_settings(options)
    folder = options.folder or Path(datetime.now().strftime('bag_%Y%m%d-%H%M%S'))
    return record(folder, options, zenoh)


def record(folder: Path, options: argparse.Namespace, zenoh: ZenohSettings | None) -> int:
    """Record until a signal or a limit; return the exit status. Raises ParameterError."""
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.bags.recording.node import BagRecorderNode, TopicFilter
    from lerobot_serve.tools.bags.recording.write_queue import RecordingLimits

    recorders: list[BagRecorderNode] = []

    def create(runtime: NodeRuntime) -> BagRecorderNode:
        topics = TopicFilter(frozenset(options.topics), options.all)
        limits = RecordingLimits(int(options.max_size * 1e6), options.duration)
        try:
            recorders.append(BagRecorderNode(runtime, folder, topics, limits, zenoh))
        except BagError as error:
            raise ParameterError(str(error)) from error
        return recorders[0]

    status = run(create, [])
    return print_summary(recorders[0], status) if recorders else status


def print_summary(recorder: BagRecorderNode, status: int) -> int:
    """Print the contents of the bag; return the exit status."""
    recording, contents = recorder.recording, recorder.contents
    for name in sorted(contents.counts):
        print(f'{contents.counts[name]:>9}  {name}')
    if recording.dropped:
        print(f'{recording.dropped} messages dropped: disk too slow')
    if recording.failed:
        print(f'error: {recording.ended}; messages written before can be read: {recorder.folder}')
        return 1
    print(f'{recorder.folder}: {contents.messages} messages; ended {recording.ended}')
    return status or int(bool(recording.dropped))
