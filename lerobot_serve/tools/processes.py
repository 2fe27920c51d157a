# SPDX-License-Identifier: Apache-2.0
"""
The executables and verbs of the package, and child processes that end with this one. Called by
verbs, the demo, tests and benchmarks. Main thread: a child is bound to the thread that starts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import shutil

from ament_index_python.packages import get_package_prefix, PackageNotFoundError

from lerobot_serve.child_process import python
from lerobot_serve.errors import UserError


def executable_path(name: str) -> Path:
    """Return the installed executable. Raises UserError."""
    try:
        path = Path(get_package_prefix('lerobot_serve')) / 'lib' / 'lerobot_serve' / name
    except PackageNotFoundError:
        raise UserError('lerobot_serve is not installed; source install/setup.bash') from None
    if not path.exists():
        raise UserError(f'{path} is missing; rebuild the workspace')
    return path


def end_with_parent(command: Sequence[str]) -> list[str]:
    """
    Return a command that the kernel kills when the thread that starts it ends.

    Call Popen in a thread that outlives the child: the main thread. Without setpriv (util-linux,
    on every Debian, Ubuntu and Fedora) the command itself is returned.
    """
    setpriv = shutil.which('setpriv')
    return [setpriv, '--pdeathsig', 'KILL', '--', *command] if setpriv else [*command]


RUN_VERB = (
    'import sys; from lerobot_serve.tools.cli.main import main; sys.exit(main(sys.argv[1:]))'
)


def verb_command(words: Sequence[str]) -> list[str]:
    """Return the command of a verb, which the kernel ends with the thread that starts it."""
    return end_with_parent(python('-c', RUN_VERB, *words))
