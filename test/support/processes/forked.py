# SPDX-License-Identifier: Apache-2.0
"""
The process of ForkServer: imports the nodes, then forks one for each order of its socket.

An order is a JSON list (executable, arguments, environment, folder, pid of the test's process) and
comes with the file that takes the output; the answer is the pid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import ctypes
from functools import partial
import gc
from importlib import import_module
import inspect
import json
import os
from pathlib import Path
import signal
import socket
import sys
import traceback
from typing import NoReturn

MESSAGE_BYTES = 1 << 18
NODES = ('edge', 'gateway', 'learner', 'router', 'server', 'sim')
# imported with the first policy of a test
POLICIES = ('numpy.ma', 'numpy.random', 'lerobot_serve.policies.synthetic.null')
# an exit status
GOODBYE_MISSING = 99
# of sys/prctl.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Make this process the parent of grandchildren whose parent ends within the block."""
    control(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        control(PR_SET_CHILD_SUBREAPER, 0)


def control(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f'prctl {option}')


def serve(orders: socket.socket) -> None:
    """Fork until the test's process has closed its end."""
    while True:
        order, files, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 1)
        if not order:
            return
        orders.send(str(fork(order, files[0])).encode())
        os.close(files[0])


def fork(order: bytes, log: int) -> int:
    """Start a process whose parent ends at once, so that the test's process adopts it."""
    answer, told = os.pipe()
    adopted, tell_adopted = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = os.fork()
        if child == 0:
            os.close(tell_adopted)
            run(order, log, adopted)
        os.write(told, str(child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    # the kernel gives children away before their parent can be waited for
    os.write(tell_adopted, b'.')
    pid = int(os.read(answer, 32))
    for end in (answer, told, adopted, tell_adopted):
        os.close(end)
    return pid


def run(order: bytes, log: int, adopted: int) -> NoReturn:
    """Become the executable."""
    try:
        executable, arguments, environment, folder, adopter = json.loads(order)
        end_with(adopter, adopted)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 256)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        paths = [path for path in environment.get('PYTHONPATH', '').split(os.pathsep) if path]
        sys.path[:0] = [path for path in paths if path not in sys.path]
        sys.argv = [executable, *arguments]
        # what a node that starts again runs
        paths_of = import_module('lerobot_serve.tools.processes')
        sys.orig_argv = [sys.executable, str(paths_of.executable_path(executable)), *arguments]
        entry_points = import_module('lerobot_serve.entry_points')
        entry_points.exit_at_once = partial(exit_checked, entry_points.exit_at_once)
        getattr(entry_points, executable)()
    except BaseException:
        traceback.print_exc()
    finally:
        # never back into the loop of the server
        os._exit(1)


def exit_checked(exit_at_once: Callable[[int], NoReturn], status: int) -> NoReturn:
    """End the process; with GOODBYE_MISSING when its peers are not told and wait for the lease."""
    if status == 0 and is_participant():
        print('this process ends without a goodbye to its peers', file=sys.stderr, flush=True)
        status = GOODBYE_MISSING
    exit_at_once(status)


def is_participant(pid: int | str = 'self') -> bool:
    """Return whether a process has a DDS participant, by the threads that receive for it."""
    for task in Path(f'/proc/{pid}/task').glob('*/comm'):
        # the thread may have ended meanwhile
        with suppress(OSError):
            if task.read_text().startswith('dds.udp'):
                return True
    return False


def load_type_supports() -> None:
    """Load what the first endpoint of each type would load."""
    for name, module in tuple(sys.modules.items()):
        if name.rpartition('.')[0].endswith(('.msg', '.srv', '.action')):
            for kind in tuple(vars(module).values()):
                if isinstance(kind, type) and hasattr(kind, '__import_type_support__'):
                    kind.__import_type_support__()


def end_with(adopter: int, adopted: int) -> None:
    """Let the kernel end this process with the one that adopts it. Blocks until it has."""
    told = os.read(adopted, 1)
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if not told or os.getppid() != adopter:
        raise RuntimeError('the process of the test has ended')


def main() -> None:
    # before numpy starts its threads: a signal would be delivered to one of them
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    # this file's folder is not where modules are
    sys.path.pop(0)
    for node in NODES:
        import_module(f'lerobot_serve.{node}.node')
    for policy in POLICIES:
        import_module(policy)
    load_type_supports()
    # the first line that a node logs searches all modules for its own
    inspect.getmodule(sys._getframe())
    # a collection would write into every page that parent and child share
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == '__main__':
    main()
