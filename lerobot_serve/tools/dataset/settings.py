# SPDX-License-Identifier: Apache-2.0
"""What a conversion is asked for, how it reports, and what it did. Plain data; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.argument import Argument
from lerobot_serve.versions.file_hash import CountBytes

# instead of an encoder: each picture as PNG in its row
PICTURES = 'png'


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """What to convert and how. Raises WrongCommandLine."""

    append: Annotated[bool, Argument('add to OUT, without the episodes it has')] = False
    check: Annotated[
        bool,
        Argument('decode every frame and compare frames with rows (counted without decoding)'),
    ] = False
    filters: Annotated[
        Sequence[str],
        Argument(
            'only episodes that are: success, failure, intervention, slot=NAME or '
            'policy=FINGERPRINT; several of one kind are alternatives, different kinds all hold',
            'WHICH',
            flags=('--filter',),
            nargs='+',
        ),
    ] = ()
    robot_name: Annotated[str, Argument('only this robot of the bags (all)')] = ''
    robot_file: Annotated[
        Path | None,
        Argument(
            'sample bags of other recorders by this robot file: its inputs, its command topic and '
            'its fps',
            'FILE',
            flags=('--robot',),
        ),
    ] = None
    task: Annotated[str, Argument('task of episodes without one')] = ''
    vcodec: Annotated[
        Literal['h264', 'hevc', 'libsvtav1', 'png'],
        Argument(
            'encoder of the videos; png: no videos, each picture in its row, which is larger and '
            'needs no reader of videos'
        ),
    ] = 'h264'
    depth_millimetres: Annotated[
        bool,
        Argument(
            'store depth in metres (32FC1) as the nearest millimetre, 0 for no measurement '
            '(refused: LeRobot stores integers only)'
        ),
    ] = False

    def __post_init__(self) -> None:
        for flag, given in (('--robot-name', self.robot_name), ('--filter', self.filters)):
            if self.robot_file and given:
                raise WrongCommandLine(
                    f'{flag} is for bags with executed actions, not with --robot'
                )

    @property
    def has_videos(self) -> bool:
        """Whether the frames of cameras become videos."""
        return self.vcodec != PICTURES


class ConversionReport(Protocol):
    """Shows progress and notes."""

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
