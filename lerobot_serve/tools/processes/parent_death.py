# SPDX-License-Identifier: Apache-2.0
"""Binds a child process to the life of its parent."""

from __future__ import annotations

from collections.abc import Sequence
import shutil


def end_with_parent(command: Sequence[str]) -> list[str]:
    """
    Return a command that the kernel kills when the thread that starts it ends.

    Call Popen in a thread that outlives the child: the main thread. Without setpriv (util-linux,
    on every Debian, Ubuntu and Fedora) the command itself is returned.
    """
    setpriv = shutil.which('setpriv')
    return [setpriv, '--pdeathsig', 'KILL', '--', *command] if setpriv else [*command]
