# SPDX-License-Identifier: Apache-2.0
"""Finds the runs below paths. Any thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lerobot_serve.trace.format.run_files import PART, parts_of
from lerobot_serve.trace.format.schema import TraceError


def find_runs(paths: Iterable[Path | str]) -> list[Path]:
    """Return the first file of each run that is named or in a folder. Raises TraceError."""
    runs: dict[Path, None] = {}
    for path in map(Path, paths):
        files = sorted(path.rglob('*.jsonl')) if path.is_dir() else [path]
        first = [found[0] for file in files if (found := _parts(file))]
        if not first:
            raise TraceError(
                f'{path} is not a trace; name files NAME.jsonl of nodes, or folders '
                'with such files'
            )
        runs |= {file.resolve(): None for file in first}
    return list(runs)


def _parts(file: Path) -> list[Path]:
    # cached, so that a later part of a known run needs no second listing of the folder
    match = PART.fullmatch(file.name)
    if match and match['number'] and (file.parent / f'{match["stem"]}.jsonl').is_file():
        return [file.parent / f'{match["stem"]}.jsonl']
    return parts_of(file)
