# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve record`: records robots into bags, by a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TYPE_CHECKING

from lerobot_serve.tools.cli.arguments import Endpoints, OBSERVED, ObserverOptions
from lerobot_serve.tools.cli.signature import Argument, verb_of
from lerobot_serve.tools.recorder.options import (
    check_options,
    DAGGER,
    RecordingRules,
    STRATEGIES,
)

if TYPE_CHECKING:
    from lerobot_serve.tools.recorder.node import RecorderNode
    from lerobot_serve.tools.recorder.settings import RecorderSettings
    from lerobot_serve.zenoh.settings import ZenohSettings

HELP = 'record robots into bags, in the format of ros2 bag'
# the node handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve record bags/monday --strategy episodic  | stop with Ctrl-C; exit '
    'status 0 when the bags are complete, 1 when something is missing'
)


def record(
    folder: Annotated[
        Path | None,
        Argument(
            'folder of the bag, which must not exist yet; of all bags for other strategies than '
            'continuous (bag_TIME)',
            'FOLDER',
        ),
    ] = None,
    *,
    strategy: Annotated[
        Literal['continuous', 'episodic', 'sentry', 'highlight', 'dagger'],
        Argument(
            '; '.join(f'{name}: {text}' for name, text in STRATEGIES.items()), names_default=False
        ),
    ] = 'continuous',
    robot: Annotated[str, Argument('only this robot, by name or namespace (all)', 'NAME')] = '',
    topics: Annotated[
        Sequence[str],
        Argument(
            'topics to record (all topics of lerobot_serve_interfaces, /diagnostics, and what '
            'robot files name)',
            'NAME',
            flags=('--topic',),
            nargs='+',
            either='which',
        ),
    ] = (),
    all_topics: Annotated[
        bool, Argument('record every topic', flags=('--all',), either='which')
    ] = False,
    connect: Annotated[Endpoints, Argument(f'record {OBSERVED}', 'ENDPOINT', nargs='+')] = (),
    observer: ObserverOptions,
    rules: RecordingRules,
    namespace: Annotated[str, Argument('namespace of the node recorder', 'NAME')] = '',
) -> int:
    """Record until a signal or a limit; return the exit status. Raises ParameterError."""
    from dataclasses import asdict, replace
    from datetime import datetime

    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.tools.recorder.settings import RecorderSettings

    numbers = {k: v for k, v in asdict(rules).items() if v != getattr(RecordingRules(), k)}
    check_options({'strategy': strategy, 'topic': topics, 'all': all_topics, **numbers})
    relative = [topic for topic in topics if not topic.startswith('/')]
    if relative:
        raise ParameterError(f'--topic must be full names such as /{relative[0]}, got {relative}')
    settings = RecorderSettings(
        folder or Path(datetime.now().strftime('bag_%Y%m%d-%H%M%S')),
        strategy,
        robot,
        frozenset(topics),
        all_topics,
        replace(rules, only_with_person=strategy == DAGGER),
    )
    return run_recorder(settings, namespace, observer.settings(connect))


def run_recorder(settings: RecorderSettings, namespace: str, zenoh: ZenohSettings | None) -> int:
    """Record until a signal or a limit; return the exit status. Raises ParameterError."""
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.recorder.node import RecorderNode

    recorders: list[RecorderNode] = []

    def create(runtime: NodeRuntime) -> RecorderNode:
        try:
            recorders.append(RecorderNode(runtime, settings, zenoh))
        except BagError as error:
            raise ParameterError(str(error)) from error
        return recorders[0]

    place = f'__ns:=/{namespace.strip("/")}'
    status = run(create, ['--ros-args', '-r', place] if namespace else [])
    return print_summary(recorders[0], status) if recorders else status


def print_summary(recorder: RecorderNode, status: int) -> int:
    """Print what was recorded; return the exit status."""
    from lerobot_serve.tools.recorder.strategy_writer import StrategyWriter

    recording, writer = recorder.recording, recorder.writer
    folder = recorder.settings.folder
    for name in sorted(writer.counts):
        print(f'{writer.counts[name]:>9}  {name}')
    dropped = recorder.dropped()
    if dropped:
        print(f'{sum(dropped.values())} messages dropped: disk too slow')
    for name, count in sorted(dropped.items()):
        print(f'{count:>9}  dropped of {name}')
    unheard = recorder.unheard_s()
    for name, silent_s in sorted(unheard.items()):
        print(f'{name} was not heard for {silent_s:.0f} s although it had a publisher')
    if announcer := recorder.announcer:
        left = f'; {announcer.left} by the next recorder of this folder' if announcer.left else ''
        print(f'{announcer.announced} episodes announced{left}')
    if recording.failed:
        print(f'error: {recording.ended}; messages written before can be read: {folder}')
        return 1
    messages = sum(writer.counts.values())
    bags = f' in {writer.finished} bags' if isinstance(writer, StrategyWriter) else ''
    print(f'{folder}: {messages} messages{bags}; ended {recording.ended}')
    return status or int(bool(dropped or unheard))


add_arguments, main = verb_of(record)
