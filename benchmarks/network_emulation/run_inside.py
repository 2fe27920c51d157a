# SPDX-License-Identifier: Apache-2.0
"""
Becomes a command on one side of a link, as on a machine of its own.

    python -m benchmarks.network_emulation.run_inside RELAY NETWORK MOUNTS COMMAND ...

RELAY is the process id of the relay, or of a switch of tests; NETWORK and MOUNTS are the files by
which the namespaces of a side are joined. All commands of a side see its network and its /dev/shm,
and nothing of the other side.
"""

from __future__ import annotations

import os
from pathlib import Path
import sys

from benchmarks.network_emulation import namespaces
from lerobot_serve.tools.processes import end_with_parent


def main() -> int:
    """Become the command; return only when that cannot be."""
    relay, network, mounts, *command = sys.argv[1:]
    folder = os.getcwd()
    try:
        namespaces.join(Path(f'/proc/{relay}/ns/user'), namespaces.CLONE_NEWUSER)
        namespaces.join(Path(network), namespaces.CLONE_NEWNET)
        namespaces.join(Path(mounts), namespaces.CLONE_NEWNS)
    except OSError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    # joining mounts leads to /
    os.chdir(folder)
    # here again: joining a user namespace clears it
    words = end_with_parent(command)
    return os.execvp(words[0], words)


if __name__ == '__main__':
    raise SystemExit(main())
