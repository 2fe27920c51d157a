# SPDX-License-Identifier: Apache-2.0
"""Run one verb as a process and collect what it prints. The main thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from lerobot_serve.child_process import DEVNULL, PIPE, Process, start, STDOUT
from lerobot_serve.demo.child_processes import end_process
from lerobot_serve.demo.tour.commands import TypedCommand
from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.output.prefixed_output import LineBuffer
from lerobot_serve.tools.processes.parent_death import end_with_parent

# of a verb after Ctrl-C; none of them has to finish something
VERB_END_S, VERB_LIMIT_S = 3.0, 120.0
Wait = Callable[[Callable[[], bool], float, str], Any]


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
