# SPDX-License-Identifier: Apache-2.0
"""
Remember the routers and robots that verbs of this machine have found in a ROS domain.

A process that hangs, or whose link is cut, does not answer the discovery of a new node: only who
has found it before knows that it is missing. With all known nodes found, a verb need not wait for
others. One file for each domain; a file that cannot be read or written counts as empty.
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import json
import os
from pathlib import Path
import time

import msgspec

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.state_folder import ros_home

# a robot that is not found for longer is no longer listed
KEEP_S = 3600.0


class KnownNodes:
    """The nodes of one domain by the type of their state; times are seconds since 1970."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def seen(self, kind: str) -> dict[str, float]:
        """Return the nodes with the time at which each was found last; none of the future."""
        now_s = time.time()
        found = self._read().get(kind, {})
        # a clock that was ahead would keep a node until that time
        return {node: at_s for node, at_s in found.items() if 0 <= now_s - at_s <= KEEP_S}

    def add(self, kind: str, nodes: Iterable[str]) -> None:
        """Remember that these nodes are found now."""
        found = dict.fromkeys(nodes, time.time())
        self._write(kind, self.seen(kind) | found)

    def replace(self, kind: str, nodes: Iterable[str]) -> None:
        """Remember these nodes and forget all others."""
        self._write(kind, dict.fromkeys(nodes, time.time()))

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, dict[str, float]])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self, kind: str, nodes: dict[str, float]) -> None:
        content = self._read() | {kind: nodes}
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # two verbs at a time each have a file of their own until it is complete
            with replacement_of(self._file, suffix=f'.{os.getpid()}') as part:
                part.write_text(json.dumps(content))


def known_nodes() -> KnownNodes:
    """Return the nodes of the domain of this process, below ROS_HOME."""
    # rcl refuses one that is not a number
    domain = ''.join(filter(str.isdigit, os.environ.get('ROS_DOMAIN_ID', ''))) or '0'
    return KnownNodes(ros_home() / 'lerobot_serve' / 'known_nodes' / f'domain_{domain}.json')
