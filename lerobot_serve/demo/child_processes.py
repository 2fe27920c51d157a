# SPDX-License-Identifier: Apache-2.0
"""
The commands of the demo that run until its end: each `up`, and the dashboard.

Main thread: a child is bound to the thread that starts it. Each has a session of its own, so that
Ctrl-C reaches the demo alone, which then ends them in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import signal
from typing import IO

from lerobot_serve.child_process import DEVNULL, Process, start, STDOUT, TimeoutExpired
from lerobot_serve.entry_points import defer_signals
from lerobot_serve.tools.fleet.output.prefixed_output import LineBuffer, OWN_NAME
from lerobot_serve.tools.processes.parent_death import end_with_parent

# `up` ends four kinds of processes one after the other, each within 25 s
END_LIMIT_S = 110.0
# a line of `up`: the name of the process, then what it prints
PREFIXED = re.compile(r'(\S+) +\| (.*)')
ENDED = re.compile(r'(\S+) ended with (.*)')


@dataclass(slots=True)
class Child:
    """A command that runs, its log, and the part of the log that is read already."""

    name: str
    process: Process[bytes]
    log: Path
    file: IO[bytes]
    offset: int = 0
    lines: LineBuffer = field(default_factory=LineBuffer)

    def new_lines(self) -> list[str]:
        """Return the lines since the last call."""
        with self.log.open('rb') as log:
            log.seek(self.offset)
            piece = log.read()
        self.offset += len(piece)
        return list(self.lines.add(piece))


class ChildProcesses:
    """See the module."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, dict(environment)
        self.children: dict[str, Child] = {}

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a command with its output in NAME.log. Raises OSError."""
        log = self._folder / f'{name}.log'
        # the log of the dashboard holds its token; closed in end(), after the process
        file = open(log, 'wb', opener=private)  # noqa: SIM115
        with defer_signals():
            process = start(
                end_with_parent(command),
                stdin=DEVNULL,
                stdout=file,
                stderr=STDOUT,
                env=self._environment,
                start_new_session=True,
            )
            self.children[name] = Child(name, process, log, file)
        return self.children[name]

    def ended(self) -> dict[str, int]:
        """Return the exit status of every command that has ended."""
        codes = {name: child.process.poll() for name, child in self.children.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def end(self) -> dict[str, int]:
        """
        End one after the other in the order of their start, the fleet with the robots first;
        return the exit statuses. A second Ctrl-C kills what is left.
        """
        try:
            for child in self.children.values():
                end_process(child.process, END_LIMIT_S)
        finally:
            for child in self.children.values():
                child.process.kill()
                child.process.wait()
                child.file.close()
        return {name: child.process.returncode for name, child in self.children.items()}


@contextlib.contextmanager
def child_processes(folder: Path, environment: Mapping[str, str]) -> Iterator[ChildProcesses]:
    """Yield the processes, and end them on every exit."""
    started = ChildProcesses(folder, environment)
    try:
        yield started
    finally:
        started.end()


def private(path: str, flags: int) -> int:
    """Open a file that only this user reads."""
    return os.open(path, flags, 0o600)


def end_process(process: Process[bytes], limit_s: float) -> None:
    """End a process with SIGINT, after the limit with SIGKILL."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(limit_s)
    except TimeoutExpired:
        process.kill()
        process.wait()


class FleetLog:
    """What the processes of one `up` print: the last line of each, and those that failed."""

    def __init__(self) -> None:
        self.last_lines: dict[str, str] = {}
        # process -> how it ended, in the words of `up`
        self.failures: dict[str, str] = {}
        self.own_lines: list[str] = []

    def add(self, line: str) -> None:
        """Add one line of the log."""
        found = PREFIXED.fullmatch(line)
        if not found:
            return
        name, text = found.groups()
        if name != OWN_NAME:
            self.last_lines[name] = text.strip() or self.last_lines.get(name, '')
            return
        self.own_lines.append(text)
        if ended := ENDED.match(text):
            self.failures[ended[1]] = ended[2]

    def failure(self, expected: set[str]) -> str:
        """Return which process failed and its last line, empty without one; except `expected`."""
        for name, how in self.failures.items():
            if name not in expected:
                return f'{name} ended with {how}; last line: {self.last_lines.get(name, "none")}'
        return ''


def process_ids(parent: int) -> dict[str, int]:
    """
    Return the children of a process that are nodes: process id by namespace and executable, such
    as `a1/policy_server`.
    """
    found = {}
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError, ValueError):
            if int((folder / 'stat').read_text().rpartition(')')[2].split()[1]) == parent:
                words = (folder / 'cmdline').read_text().split('\0')
                found[node_of(words)] = int(folder.name)
    return found


def node_of(words: Sequence[str]) -> str:
    """Return namespace and executable of the command line of a node."""
    spaces = [word.partition(':=')[2].strip('/') for word in words if word.startswith('__ns:=')]
    program = next((Path(word).name for word in words if '/lib/lerobot_serve/' in word), '')
    return '/'.join([*spaces[:1], program])
