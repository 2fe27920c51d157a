# SPDX-License-Identifier: Apache-2.0
"""Run a verb of `lerobot-serve` as a process that ends with this one. Main thread."""

from __future__ import annotations

import os
import signal
import threading
from typing import NamedTuple

from lerobot_serve.child_process import DEVNULL, PIPE, Process, start, TimeoutExpired
from lerobot_serve.tools.processes.verb_command import verb_command

# a verb that takes steps says after Ctrl-C what is done and what is left
POLL_S, END_LIMIT_S = 0.5, 15.0
INTERRUPTED = 130


class VerbResult(NamedTuple):
    """How a verb ended: its exit status and what it printed."""

    status: int
    output: str
    errors: str


def run_verb(words: list[str], limit_s: float, stop: threading.Event) -> VerbResult:
    """
    Run a verb until it ends. It is interrupted when `stop` is set, and after `limit_s`: its status
    is 130 then.
    """
    process = start(
        verb_command(words),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        errors='replace',
        env={**os.environ, 'COLUMNS': '200'},
        # Ctrl-C reaches this process alone, which passes it on
        start_new_session=True,
    )
    waited_s = 0.0
    while True:
        try:
            output, errors = process.communicate(timeout=POLL_S)
            return VerbResult(process.returncode, output, errors)
        except TimeoutExpired:
            waited_s += POLL_S
        if stop.is_set():
            return _interrupted(process, 'the loop ends')
        if waited_s >= limit_s:
            return _interrupted(process, f'not done within {limit_s:g} s')


def _interrupted(process: Process[str], why: str) -> VerbResult:
    process.send_signal(signal.SIGINT)
    try:
        output, errors = process.communicate(timeout=END_LIMIT_S)
    except TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return VerbResult(INTERRUPTED, output, f'{errors.rstrip()}\n{why}')
