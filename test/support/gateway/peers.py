# SPDX-License-Identifier: Apache-2.0
"""
Clients of other projects, unmodified, in a folder of their own below .workspace; a test is skipped
with the reason where they cannot be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import sys

import pytest

from benchmarks.peers.pinned_packages import install, PeerUnavailable
from support.paths import REPOSITORY

FOLDER = REPOSITORY / '.workspace' / 'peers'


def folder_of(peer: str) -> str:
    """Return where the packages of a peer are."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / f'{peer}.lock').open('w') as lock:
            # of other test processes
            fcntl.flock(lock, fcntl.LOCK_EX)
            return str(install(peer, FOLDER))
    except (PeerUnavailable, OSError) as reason:
        pytest.skip(f'the client of {peer} cannot be installed: {reason}')


@contextlib.contextmanager
def packages_of(peer: str) -> Iterator[None]:
    """Let the packages of a peer be imported; what the workspace has comes first."""
    folder = folder_of(peer)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
