# SPDX-License-Identifier: Apache-2.0
"""Finds the runs below paths. Any thread."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lerobot_serve.trace.format.run_files import first_part, group_parts
from lerobot_serve.trace.format.schema import TraceError


def find_runs(paths: Iterable[Path | str]) -> list[list[Path]]:
    """
    Return the files of each run that is named or in a folder, oldest first. Raises TraceError.
    """
    # each folder is listed once, however many runs and parts it has
    listed = cache(lambda folder: group_parts(folder.glob('*.jsonl')))

    def parts_of(file: Path) -> list[Path]:
        only = [file] if file.is_file() else []
        return listed(file.parent).get(first_part(file), only)

    runs: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        files = sorted(path.rglob('*.jsonl')) if path.is_dir() else [path]
        found = [parts for file in files if (parts := parts_of(file.resolve()))]
        if not found:
            raise TraceError(
                f'{path} is not a trace; name files NAME.jsonl of nodes, or folders '
                'with such files'
            )
        runs |= {parts[0]: parts for parts in found}
    return list(runs.values())
