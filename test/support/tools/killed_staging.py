# SPDX-License-Identifier: Apache-2.0
"""
Kills a conversion before each of its changes of files, and the one after it before each of its
own: `python killed_staging.py FOLDER`. A process of its own, without threads, so that it may fork;
exit status 1 and a text when a dataset is lost or not whole.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
import os
from pathlib import Path
import shutil
import signal
import sys
import traceback

from lerobot_serve.tools.dataset.staging import PREVIOUS, Staging

EPISODE = 'ab' * 16
CHANGES = {'os.rename', 'os.remove', 'os.rmdir', 'os.mkdir'}
FILES = ('meta/info.json', 'data/file-000.parquet')
OLD, NEW = 'old', 'new'


def write(folder: Path, content: str) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def content(folder: Path) -> str:
    """Return what a dataset holds; empty without one. Raises AssertionError if not whole."""
    if not folder.exists():
        return ''
    found = {(folder / name).read_text() if (folder / name).exists() else '' for name in FILES}
    assert len(found) == 1 and found <= {OLD, NEW}, (folder, found)
    return found.pop()


def prepare(out: Path, *, is_append: bool) -> None:
    shutil.rmtree(out.parent, ignore_errors=True)
    out.parent.mkdir()
    if is_append:
        write(out, OLD)


def convert(out: Path) -> None:
    """Convert one episode as `lerobot-serve dataset --append` does, if OUT lacks it."""
    with Staging(out) as staging:
        if content(out) != NEW:
            if not staging.is_ready(EPISODE):
                write(staging.part(EPISODE), NEW)
                staging.commit(EPISODE, {})
            write(staging.merged, NEW)
            staging.publish()
        staging.remove_if_empty()


def is_killed(act: Callable[[], None], at: int) -> bool:
    """Do something in a process that is killed before its change number `at`, if it gets there."""
    child = os.fork()
    if child == 0:
        changes = count(1)

        def hook(event: str, words: tuple[object, ...]) -> None:
            writes = event == 'open' and isinstance(words[2], int) and words[2] & os.O_CREAT
            if (event in CHANGES or writes) and next(changes) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f'status {status} at {at}'
    return status != 0


def check(out: Path, least: str) -> str:
    """Return what is there after a kill; nothing that was there is lost."""
    found = content(out) or content(out.with_name(f'{out.name}.staging') / PREVIOUS)
    assert found in ((NEW,) if least == NEW else (least, NEW)), (found, least)
    return found


def kill_each(root: Path, *, is_append: bool) -> int:
    """Return how many pairs of kills there were."""
    out, pairs, first, second = root / 'run' / 'out', 0, 1, 1
    while True:
        prepare(out, is_append=is_append)
        if not is_killed(lambda: convert(out), first):
            return pairs
        after = check(out, OLD if is_append else '')
        was_killed = is_killed(lambda: convert(out), second)
        check(out, after)
        convert(out)
        assert content(out) == NEW
        assert [each.name for each in out.parent.iterdir()] == [out.name]
        pairs += 1
        # a third of the pairs; neighbours begin elsewhere
        first, second = (first, second + 3) if was_killed else (first + 1, 1 + first % 3)


def main() -> None:
    # a kill leaves what was written, flushed or not, and this is a thousand conversions
    os.fsync = lambda _: None
    for is_append in (False, True):
        pairs = kill_each(Path(sys.argv[1]), is_append=is_append)
        assert pairs > 100, pairs
        print(f'{pairs} pairs of kills, append: {is_append}')


if __name__ == '__main__':
    main()
