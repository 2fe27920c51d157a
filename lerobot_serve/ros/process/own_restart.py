# SPDX-License-Identifier: Apache-2.0
"""
Replace this process by a new one with the same command line, when nothing else helps: its
middleware hears nothing, and no call of it changes that. Plain.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from lerobot_serve.child_process import replace_by_same_command
from lerobot_serve.ros.process.service_manager import ServiceManager

STARTS, STARTS_VARIABLE = 3, 'LEROBOT_SERVE_STARTS'
# after so long the next one is not in a row with the last
STEADY_S = 60.0


class OwnRestart:
    """Counts the starts in a row, in a variable of the environment. Any thread."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager, self._begun_s = manager, time.monotonic()
        # not for children
        starts = os.environ.pop(STARTS_VARIABLE, '')
        self._starts = int(starts) if starts.isdecimal() else 0

    def start_again(self, why: str) -> None:
        """Replace this process, at most STARTS times in a row; return when that is not allowed."""
        is_in_row = time.monotonic() - self._begun_s < STEADY_S
        starts = self._starts + 1 if is_in_row else 1
        if starts > STARTS:
            print(f'{why}; it has started again {STARTS} times in a row', file=sys.stderr)
            return
        print(f'{why}, and starts again', file=sys.stderr, flush=True)
        sys.stdout.flush()
        os.environ[STARTS_VARIABLE] = str(starts)
        # the new process has the same number
        self._manager.give_back(os.environ)
        for handle in map(int, os.listdir('/proc/self/fd')):
            # ports and locks of the middleware, which would stay with the new process
            if handle > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(handle, False)
        replace_by_same_command()
