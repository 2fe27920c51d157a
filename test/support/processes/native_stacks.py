# SPDX-License-Identifier: Apache-2.0
"""What the threads of a process do within the middleware, for a failure that is rarely seen."""

from __future__ import annotations

from collections.abc import Mapping
import re
import shutil
import subprocess

LIMIT_S, DEPTH, NAMES = 30.0, 20, 6
THREAD, FRAME = (
    re.compile(r'^Thread \d+ .*"(.*)"', re.M),
    re.compile(r'^#\d+ +(?:0x\w+ in )?(\S+)'),
)
MIDDLEWARE = re.compile(r'fast(?:rtps|dds|cdr)|rmw')
# below every wait, and every thread
COMMON = re.compile(r'_|futex|do_futex|start_thread|clone|syscall|void\*$')


def native_stacks(pid: int) -> list[str]:
    """Return a line for each thread that is within the middleware; none where there is no gdb."""
    if not shutil.which('gdb'):
        return []
    command = ['gdb', '-batch', '-nx', '-p', str(pid), '-ex', f'thread apply all bt {DEPTH}']
    try:
        printed = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        return [f'gdb took more than {LIMIT_S:g} s']
    return [line for part in re.split(r'\n(?=Thread \d)', printed) if (line := _line(part))]


def _line(part: str) -> str:
    name = THREAD.search(part)
    if not name or not MIDDLEWARE.search(part):
        return ''
    frames = [found[1] for line in part.splitlines() if (found := FRAME.match(line))]
    named = [frame.partition('(')[0] for frame in frames if not COMMON.match(frame)]
    return f'{name[1]}: {" < ".join(named[:NAMES])}' if named else ''


def print_stacks(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Print the threads of those processes that run, for the output of a test that fails."""
    for name, process in processes.items():
        if process.poll() is None:
            print(f'--- {name}, threads in the middleware', *native_stacks(process.pid), sep='\n')
