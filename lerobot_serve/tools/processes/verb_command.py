# SPDX-License-Identifier: Apache-2.0
"""The command line of a verb of this package, in the Python that runs now. Any thread."""

from __future__ import annotations

from collections.abc import Sequence

from lerobot_serve.child_process import python
from lerobot_serve.tools.processes.parent_death import end_with_parent

RUN_VERB = (
    'import sys; from lerobot_serve.tools.cli.main import main; sys.exit(main(sys.argv[1:]))'
)


def verb_command(words: Sequence[str]) -> list[str]:
    """Return the command of a verb, which the kernel ends with the thread that starts it."""
    return end_with_parent(python('-c', RUN_VERB, *words))
