# SPDX-License-Identifier: Apache-2.0
"""
A process that is killed at any of its system calls leaves a version whole or not at all, and
nothing that stops the next process.
"""

from __future__ import annotations

import os
from pathlib import Path
import random
import subprocess
import sys

import pytest
from support.paths import REPOSITORY
from support.versions import killed_at
from support.versions.version_rig import check_whole, policy_folder, published

from lerobot_serve.tools.processes.parent_death import end_with_parent
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer.fetching import Fetch
from lerobot_serve.versions.transfer.http_files import HttpSource, ServerAddress
from lerobot_serve.versions.transfer.serving import StoreHttpServer

LIMIT_S = 300.0
SIZE_BYTES = 3_000_000
FETCHER = """
import sys
from pathlib import Path
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer import http_files
from lerobot_serve.versions.transfer.fetching import Fetch
http_files.BLOCK_BYTES = 4096
source = http_files.HttpSource(http_files.ServerAddress(sys.argv[1]))
def count(block):
    # go on when asked to, so that a kill meets a fetch that is not over
    print(block, flush=True)
    sys.stdin.readline()


Fetch(VersionStore.make(Path(sys.argv[2])), source, count=count).run('act')
"""


def environment() -> dict[str, str]:
    paths = [str(REPOSITORY), str(REPOSITORY / 'test'), os.environ.get('PYTHONPATH', '')]
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(paths)}


@pytest.mark.slow
@pytest.mark.parametrize('what', ['publish', 'fetch', 'delete'])
def test_killed_at_each_call_a_version_is_whole_or_not_there(tmp_path, what):
    command = [sys.executable, killed_at.__file__, what, str(tmp_path)]
    done = subprocess.run(
        end_with_parent(command),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


@pytest.mark.parametrize('seed', range(3))
def test_a_fetch_continues_where_it_was_killed(tmp_path, seed):
    origin = VersionStore.make(tmp_path / 'origin')
    wanted = published(origin, policy_folder(tmp_path / 'policy', size_bytes=SIZE_BYTES))
    server = StoreHttpServer(origin)
    store = VersionStore.make(tmp_path / 'store')
    try:
        for blocks in random.Random(seed).sample(range(5, 300), 2):
            kill_after(blocks, server.url, store.folder)
            assert not check_whole(store)
            had = partial_bytes(store)
            assert 0 < had < wanted.size_bytes
        done = Fetch(store, HttpSource(ServerAddress(server.url))).run('act')
    finally:
        server.close()
    assert done.transferred_bytes == wanted.size_bytes - had
    assert check_whole(store) == [wanted.id]
    assert not list(store.incoming.iterdir())


def partial_bytes(store: VersionStore) -> int:
    files = [path for path in store.incoming.rglob('*') if path.is_file()]
    return sum(path.stat().st_size for path in files)


def kill_after(blocks: int, url: str, store: Path) -> None:
    command = [sys.executable, '-c', FETCHER, url, str(store)]
    with subprocess.Popen(
        end_with_parent(command),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            for _ in range(blocks):
                assert process.stdout.readline()
                process.stdin.write(b'\n')
        finally:
            process.kill()
