# SPDX-License-Identifier: Apache-2.0
"""
Becomes a command on one machine of a network of support.network.switch.

    python -m support.network.run_on SWITCH NETWORK MOUNTS COMMAND ...

SWITCH is the process id of the switch, NETWORK and MOUNTS are what it prints for the machine. All
commands on one machine share its network and its /dev/shm.
"""

from __future__ import annotations

import os
from pathlib import Path
import sys

from benchmarks.network_emulation import namespaces
from lerobot_serve.tools.processes import end_with_parent


def main() -> int:
    """Become the command; return only when that fails."""
    switch, network, mounts, *command = sys.argv[1:]
    folder = os.getcwd()
    try:
        namespaces.join(Path(f'/proc/{switch}/ns/user'), namespaces.CLONE_NEWUSER)
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
