# SPDX-License-Identifier: Apache-2.0
"""
Which runs there are, and all of them read side by side.

Clocks of two machines are not compared to judge anything: they decide only in which order files
are read, so that what belongs together is met at about the same time. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from pathlib import Path

from lerobot_serve.tools.traces.fields import Record
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.run_files import PART, parts_of
from lerobot_serve.trace.format.schema import TraceError

# when, of which run and what
TimedRecords = Iterator[tuple[float, TraceRun, Record]]


def find_runs(paths: Iterable[Path | str]) -> list[Path]:
    """Return the first file of each run that is named or lies in a folder. Raises TraceError."""
    runs: dict[Path, None] = {}
    for path in map(Path, paths):
        files = sorted(path.rglob('*.jsonl')) if path.is_dir() else [path]
        first = [found[0] for file in files if (found := _parts(file))]
        if not first:
            raise TraceError(
                f'there is no trace {path}; name files NAME.jsonl that nodes wrote, or folders '
                'with such files'
            )
        runs |= {file.resolve(): None for file in first}
    return list(runs)


def open_runs(paths: Iterable[Path | str]) -> list[TraceRun]:
    """Return the runs, not yet read. Raises TraceError."""
    return [TraceRun(path, number) for number, path in enumerate(find_runs(paths))]


def merge_by_time(
    runs: Sequence[TraceRun], more: Iterable[TimedRecords] = ()
) -> Iterator[tuple[TraceRun, Record]]:
    """
    Hand out all records of all runs, and of what is not a file of its own for each run, about in
    the order of time. Raises TraceError.
    """
    for _, run, record in merge(*(run.read() for run in runs), *more, key=itemgetter(0)):
        yield run, record


def _parts(file: Path) -> list[Path]:
    # a later part whose run was met already costs no second look into the folder
    match = PART.fullmatch(file.name)
    if match and match['number'] and (file.parent / f'{match["stem"]}.jsonl').is_file():
        return [file.parent / f'{match["stem"]}.jsonl']
    return parts_of(file)
