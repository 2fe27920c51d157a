# SPDX-License-Identifier: Apache-2.0
"""
The commands of the demo that run until its end, each `up` and the dashboard, and verbs that run
for an act.

Main thread: a child is bound to the thread that starts it. Each has a session of its own, so that
Ctrl-C reaches the demo alone, which then ends them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import signal
from typing import Any, IO

from lerobot_serve.child_process import DEVNULL, PIPE, Process, start, STDOUT, TimeoutExpired
from lerobot_serve.demo.tour.link import TypedCommand
from lerobot_serve.entry_points import defer_signals
from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.process_output import LineBuffer, OWN_NAME
from lerobot_serve.tools.processes import end_with_parent

# `up` ends four kinds of processes one after the other, each within 25 s
END_LIMIT_S = 110.0
# a line of `up`: the name of the process, then what it prints
PREFIXED = re.compile(r'(\S+) +\| (.*)')
ENDED = re.compile(r'(\S+) ended with (.*)')
ADDRESS = re.compile(r'https?://\S+')
# what lets a person act; a picture of the screen is shown to others
TOKEN = re.compile(r'#token=\S+')
NAME = 'dashboard'
# a second start takes any free port
FREE_PORT = ('--port', '0')
# of a verb after Ctrl-C; none of them has to finish something
VERB_END_S, VERB_LIMIT_S = 3.0, 120.0
Wait = Callable[[Callable[[], bool], float, str], Any]


@dataclass(slots=True)
class DemoChild:
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
        self._folder, self.environment = folder, dict(environment)
        self.children: dict[str, DemoChild] = {}

    def start(self, name: str, command: Sequence[str]) -> DemoChild:
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
                env=self.environment,
                start_new_session=True,
            )
            self.children[name] = DemoChild(name, process, log, file)
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


class DashboardProcess:
    """
    Starts the command with the fleet, so that the page is there before the first robot moves, and
    finds its address in what it prints. The demo continues without it: a port that is taken leads
    to a free one, any other failure to a line. `typed` is the command as a person
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


def run_process(
    words: Sequence[str], environment: Mapping[str, str], typed: TypedCommand, wait: Wait
) -> None:
    """
    Run a command until it ends, also when `wait` raises. Raises UserError when it fails. It has a
    session of its own, so that Ctrl-C reaches the demo alone.
    """
    with start(
        end_with_parent(words),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            wait(reader(process, typed), VERB_LIMIT_S, typed.text)
        finally:
            end_process(process, VERB_END_S)
    if typed.status:
        last = typed.lines[-1] if typed.lines else 'no output'
        raise UserError(f'`{typed.text}` ended with status {typed.status}: {last}')


def reader(process: Process[bytes], typed: TypedCommand) -> Callable[[], bool]:
    """Return a function that reads what was printed, and returns whether the process has ended."""
    assert process.stdout
    output, lines = process.stdout, LineBuffer()
    os.set_blocking(output.fileno(), False)

    def has_ended() -> bool:
        # the status first: what is printed before the end is read after it
        status = process.poll()
        while piece := output.read():
            typed.lines.extend(lines.add(piece))
        if status is not None:
            typed.lines.extend(lines.rest())
        typed.status = status
        return status is not None

    return has_ended
