# SPDX-License-Identifier: Apache-2.0
"""
Records all the time, in slices: one bag after the other, bounded by size and by time.

No message is lost between two slices. The oldest ones can be deleted.
"""

from __future__ import annotations

from pathlib import Path
import re
import shutil
from typing import Any

from lerobot_serve.tools.bags.recording.metadata import METADATA_FILE
from lerobot_serve.tools.bags.recording.writer import BagWriter
from lerobot_serve.tools.recorder.strategies.strategy_writer import (
    SortedMessage,
    StrategyWriter,
)

SLICE = re.compile(r'slice_(\d{6,9})_\d{8}-\d{6}(-\d+)?')


class SentryWriter(StrategyWriter):
    """See the module."""

    def __init__(self, *common: Any, **options: Any) -> None:
        super().__init__(*common, **options)
        self._bag: BagWriter | None = None
        self._begin_s = 0.0
        names = [SLICE.fullmatch(path.name) for path in self.folder.root.iterdir()]
        self._number = max((int(match[1]) for match in names if match), default=0)

    def record(self, message: SortedMessage) -> None:
        if self._bag is None:
            self._bag = self._begin(message.message.stamp_ns)
        self.write_into(self._bag, message)
        if 0 < 1e6 * self.rules.slice_size <= self._bag.size_bytes:
            self.end()

    def poll(self) -> None:
        if self._bag and 0 < self.rules.slice_time <= self.clock() - self._begin_s:
            self.end()

    def end(self) -> None:
        if self._bag is None:
            return
        bag, self._bag = self._bag, None
        self.finish(bag)
        self._delete_old()

    def open_bags(self) -> list[BagWriter]:
        return [self._bag] if self._bag else []

    def _begin(self, begin_ns: int) -> BagWriter:
        self._number += 1
        self._begin_s = self.clock()
        bag = self.folder.begin('slice', f'{self._number:06}', begin_ns=begin_ns)
        self.write_latched(bag, None, begin_ns)
        return bag

    def _delete_old(self) -> None:
        if not self.rules.keep_slices:
            return
        for folder in whole_slices(self.folder.root)[: -self.rules.keep_slices]:
            shutil.rmtree(folder, ignore_errors=True)
            self.log(f'{folder.name} deleted: --keep-slices {self.rules.keep_slices}')


def whole_slices(root: Path) -> list[Path]:
    """Return the complete slices of a folder, the oldest first."""
    found = {path: SLICE.fullmatch(path.name) for path in root.iterdir()}
    whole = {
        path: int(match[1])
        for path, match in found.items()
        if match and not path.is_symlink() and (path / METADATA_FILE).is_file()
    }
    return sorted(whole, key=lambda path: whole[path])
