# SPDX-License-Identifier: Apache-2.0
"""
Try a part of a policy folder in a child process, before this process gives it to a library.

A crash, a loop and a leak of a library end only the child, which has limits of memory and time.
`try_in_child` is called by the thread that loads. Executed as a module, this file is the child: it
reads one line of JSON and the data, calls the function, and writes one line of JSON. No torch.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from lerobot_serve.child_process import Limits, run_reader, TimeoutExpired
from lerobot_serve.policies.error_text import one_line

MODULE = 'lerobot_serve.policies.runtime.trial'
# of a library and of a trial beside its data
SPARE_BYTES = 4 << 30
# the trial uses all cores
CORES = 64


def try_in_child(
    module: str,
    function: str,
    task: dict[str, Any],
    data: bytes,
    *,
    data_bytes: int,
    limit_s: float,
) -> str:
    """
    Call a function of a module of this package with the data and the task in a child process;
    return why it failed, empty if it did not. The child may take `data_bytes` beside SPARE_BYTES.
    """
    memory_bytes = SPARE_BYTES + data_bytes
    line = json.dumps({'module': module, 'function': function, 'task': task}).encode()
    limits = Limits(limit_s, memory_bytes=memory_bytes, cpu_s=int(limit_s * CORES))
    try:
        done = run_reader(['-m', MODULE], limits, data=line + b'\n' + data)
    except TimeoutExpired:
        return f'it did not finish within {limit_s:g} s'
    if done.returncode or (error := _error_in(done.stdout)) is None:
        return f'the trial, within {memory_bytes >> 20} MB, ended with status {done.returncode}'
    return error


def _error_in(output: bytes) -> str | None:
    """Return what the child says went wrong; None when it says nothing."""
    try:
        value = json.loads(output.splitlines()[-1])['error']
    except (ValueError, LookupError, TypeError):
        return None
    return value if isinstance(value, str) else None


def main() -> None:
    """Run the task on stdin; write the result on stdout."""
    given = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    try:
        getattr(importlib.import_module(given['module']), given['function'])(data, given['task'])
        error = ''
    except Exception as raised:
        # libraries raise errors of any type; what is no Exception ends the child
        error = one_line(raised) or 'an error without a text'
    print(json.dumps({'error': error}), flush=True)


if __name__ == '__main__':
    main()
