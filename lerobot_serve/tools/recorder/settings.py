# SPDX-License-Identifier: Apache-2.0
"""The settings of a recorder, and the writer of its strategy. Plain; the main thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import os
from pathlib import Path
import time

from lerobot_serve.parameters import parameter
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve.tools.recorder.bag_folder import BagFolder
from lerobot_serve.tools.recorder.episodic import EpisodicWriter
from lerobot_serve.tools.recorder.highlight import HighlightWriter
from lerobot_serve.tools.recorder.known_robots import KnownRobots
from lerobot_serve.tools.recorder.options import (
    CONTINUOUS,
    EPISODIC,
    HIGHLIGHT,
    RecordingRules,
    SENTRY,
    STRATEGIES,
)
from lerobot_serve.tools.recorder.strategy_writer import SentryWriter, StrategyWriter


class ContinuousWriter(BagWriter):
    """One bag of the wanted robots, which has its name from the begin. The writing thread."""

    def __init__(self, folder: Path, robots: KnownRobots) -> None:
        super().__init__(folder, distro=os.environ.get('ROS_DISTRO', ''))
        self._robots, self.counts = robots, self.contents.counts

    def write(self, message: BagMessage) -> None:
        self._robots.learn(message)
        if self._robots.wants(self._robots.owners(message)):
            super().write(message)


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """Options of `lerobot-serve record` that a launch file takes."""

    folder: str = parameter('bags', 'folder of the bags')
    strategy: str = parameter(EPISODIC, 'what becomes a bag', choices=tuple(STRATEGIES))
    robot: str = parameter('', 'only this robot, by name or namespace; empty for all')
    slice_size: float = parameter(0.0, 'size of a slice; 0: no bound', unit='MB', low=0)
    slice_time: float = parameter(0.0, 'duration of a slice; 0: no bound', unit='s', low=0)
    keep_slices: int = parameter(0, 'slices that stay; older ones are deleted; 0: all', low=0)


Writer = ContinuousWriter | StrategyWriter


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """What to record, how and where; empty `robot` and `topics`: all of robots."""

    folder: Path
    strategy: str = CONTINUOUS
    robot: str = ''
    topics: frozenset[str] = frozenset()
    all_topics: bool = False
    rules: RecordingRules = field(default_factory=RecordingRules)


def make_writer(settings: RecorderSettings, log: Callable[[str], None]) -> Writer:
    """Return the writer; cut bags of its folder are completed. Raises BagError."""
    robots = KnownRobots(settings.robot)
    if settings.strategy == CONTINUOUS:
        return ContinuousWriter(settings.folder, robots)
    folder = BagFolder(settings.folder)
    for each in folder.recovered:
        log(each.line)
    writers = {SENTRY: SentryWriter, HIGHLIGHT: HighlightWriter}
    kind: Callable[..., StrategyWriter] = writers.get(settings.strategy, EpisodicWriter)
    return kind(folder, robots, settings.rules, clock=time.monotonic, log=log)
