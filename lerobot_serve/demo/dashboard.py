# SPDX-License-Identifier: Apache-2.0
"""
The dashboard as one more process of the demo. Main thread. It starts with the fleet, so that the
page is there before the first robot moves.

The demo goes on without it: a port that is taken leads to a free one, any other failure to a line.
"""

from __future__ import annotations

from collections.abc import Sequence
import re

from lerobot_serve.demo.child_processes import ChildProcesses
from lerobot_serve.demo.tour.commands import TypedCommand

ADDRESS = re.compile(r'https?://\S+')
# what lets a person act; a picture of the screen is shown to others
TOKEN = re.compile(r'#token=\S+')
NAME = 'dashboard'
# a second start takes any free port
FREE_PORT = ('--port', '0')


class Dashboard:
    """
    Starts the command, and finds its address in what it prints. `typed` is the command as a person
    types it, without an output: that has the token.
    """

    def __init__(
        self, children: ChildProcesses, command: Sequence[str], typed: TypedCommand
    ) -> None:
        self._children, self._command, self.typed = children, list(command), typed
        self._starts = 0
        self.address = self.problem = ''

    def start(self) -> None:
        """Start the dashboard, again with a free port."""
        words = [*self._command, *(FREE_PORT if self._starts else ())]
        self._starts += 1
        self._children.start(NAME, words)

    def poll(self) -> str:
        """Return a line about the dashboard when there is a new one, else nothing."""
        child = self._children.children.get(NAME)
        if child is None or self.problem:
            return ''
        for line in child.new_lines():
            found = ADDRESS.search(line)
            if found and not self.address:
                self.address = found[0]
                return f'dashboard: {self.address}'
        if child.process.poll() is None:
            return ''
        if self._starts == 1 and not self.address:
            self.start()
            return ''
        self.address = ''
        self.problem = f'the dashboard has ended: {child.lines.last_line or "no output"}'
        return self.problem
