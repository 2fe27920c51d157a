# SPDX-License-Identifier: Apache-2.0
"""What a conversion is asked for, how it reports, and what it did. Plain data; any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lerobot_serve.tools.dataset.plans.bag_index import CountBytes
from lerobot_serve.tools.dataset.plans.episodes import Filter

# instead of an encoder: each picture as PNG in its row
PICTURES = 'png'


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """
    What to convert and how; `robot_file` samples bags without ExecutedAction, `depth_millimetres`
    rounds depth in metres. Without `joins` the episodes stay in the staging folder, for the next
    conversion.
    """

    bags: tuple[Path, ...]
    out: Path
    append: bool = False
    check: bool = False
    filters: tuple[Filter, ...] = ()
    robot_name: str = ''
    robot_file: Path | None = None
    task: str = ''
    vcodec: str = 'h264'
    depth_millimetres: bool = False
    joins: bool = True

    @property
    def has_videos(self) -> bool:
        """Whether the frames of cameras become videos."""
        return self.vcodec != PICTURES


class ConversionProgress(Protocol):
    """Shows progress and notes; implemented by the verb."""

    def begin(self, what: str, total_bytes: int) -> CountBytes:
        """Begin a phase; return what counts its bytes."""

    def note(self, text: str) -> None:
        """Show a line."""


@dataclass(slots=True)
class ConversionResult:
    """What a conversion did."""

    episodes: int = 0
    rows: int = 0
    known: int = 0
    filtered: int = 0
    cut: int = 0
    without_rows: int = 0
    total_episodes: int = 0
    total_rows: int = 0
    faults: list[str] = field(default_factory=list)
