# SPDX-License-Identifier: Apache-2.0
"""
Becomes a command on one side of a link, as on a machine of its own.

    python -m benchmarks.network_emulation.run_inside RELAY NETWORK COMMAND ...

RELAY is the process id of the relay, NETWORK what it gives a network to be joined by. The command
sees that network and a /dev/shm of its own: two robots would not share theirs.
"""

from __future__ import annotations

import os
from pathlib import Path
import sys

from benchmarks.network_emulation import namespaces


def main() -> int:
    """Become the command; return only when that cannot be."""
    relay, network, *command = sys.argv[1:]
    try:
        namespaces.join(Path(f'/proc/{relay}/ns/user'), namespaces.CLONE_NEWUSER)
        namespaces.join(Path(network), namespaces.CLONE_NEWNET)
        namespaces.own_shared_memory()
    except OSError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return os.execvp(command[0], command)


if __name__ == '__main__':
    raise SystemExit(main())
