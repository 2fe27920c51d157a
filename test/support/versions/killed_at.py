# SPDX-License-Identifier: Apache-2.0
"""
Runs an operation on a store in a child that is killed at its Nth call of the system, for N = 1, 2
and so on until the child ends by itself: `killed_at.py publish|fetch|delete FOLDER`.

After each kill the store is compared with what it may hold. Prints the number of kills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import os
from pathlib import Path
import shutil
import signal
import sys

from lerobot_serve.versions import file_hash, publishing
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer.fetching import Fetch
from lerobot_serve.versions.transfer.source import FolderSource
from support.versions.version_rig import check_whole, policy_folder, published

EVENTS = ('open', 'os.', 'fcntl.', 'shutil.')
BLOCK_BYTES = 4096


def killed(work: Callable[[], object], at: int) -> bool:
    """Run in a child that is killed at an event; return False if it ended before."""
    child = os.fork()
    if not child:
        left = at

        def kill_in_time(event: str, _: object) -> None:
            nonlocal left
            left -= event.startswith(EVENTS)
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_in_time)
        work()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def main(what: str, folder: Path) -> None:
    file_hash.BLOCK_BYTES = publishing.BLOCK_BYTES = BLOCK_BYTES
    policy = policy_folder(folder / 'policy')
    origin = VersionStore.make(folder / 'origin')
    wanted = published(origin, policy)
    has_been_there = False
    for at in range(1, 10_000):
        target = folder / f'store_{at}'
        store = VersionStore.make(target)
        if what == 'delete':
            published(store, policy)
        operations = {
            'publish': partial(published, store, policy),
            'fetch': partial(Fetch(store, FolderSource(origin.folder)).run, wanted.id),
            'delete': partial(store.delete, wanted.id),
        }
        was_killed = killed(operations[what], at)
        there = check_whole(store)
        assert there in ([], [wanted.id]), there
        has_been_there |= was_killed and bool(there)
        # the next process is not in the way of what the killed one left
        had = sum(p.stat().st_size for p in store.incoming.rglob('*.safetensors'))
        if what == 'fetch':
            done = Fetch(store, FolderSource(origin.folder)).run(wanted.id)
            assert there or done.transferred_bytes <= wanted.size_bytes - had
        else:
            published(store, policy)
        assert check_whole(store) == [wanted.id]
        # a change of the store removes what is left
        store.delete(wanted.id)
        assert not list(store.incoming.iterdir())
        shutil.rmtree(target)
        if not was_killed:
            assert has_been_there
            print(at - 1)
            return


if __name__ == '__main__':
    main(sys.argv[1], Path(sys.argv[2]))
