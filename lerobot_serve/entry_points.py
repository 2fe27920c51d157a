# SPDX-License-Identifier: Apache-2.0
"""
Entry points of the executables: block signals, then import and run the node.

Importing rclpy or torch takes seconds. A SIGINT during the import would end in a traceback;
blocked, it is handled once the node runs. A missing package is reported in one line.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
import contextlib
import faulthandler
from importlib import import_module
import os
import signal
import sys
import threading
from typing import NoReturn

from lerobot_serve.requirements import missing_package_text
from lerobot_serve.shared_memory import segments

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
# exceeds the shutdown time of middleware and interpreter with many topics on a busy machine
EXIT_TIMEOUT_S = 15.0


def run_main(module: str) -> NoReturn:
    """Block the signals in this and all later threads, run the module's main, end the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        status: int = import_module(module).main()
    except ModuleNotFoundError as error:
        print(f'error: {missing_package_text(error)}', file=sys.stderr)
        status = 1
    exit_within(EXIT_TIMEOUT_S)
    end_process(status)


def end_process(status: int) -> NoReturn:
    """
    End a process whose nodes are closed: run the exit handlers, flush, and skip the destructors of
    native libraries. Destructors of the middleware and of torch may hang after an orderly end.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # None without a console; a pipe may have no reader
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    exit_at_once(status)


def exit_at_once(status: int) -> NoReturn:
    """End the process while its threads run; leave no shared memory behind. Any thread."""
    try:
        segments.remove_own_segments()
    finally:
        os._exit(status)


def exit_within(limit_s: float) -> None:
    """
    End the process with status 1 if it still runs after `limit_s`, and print the stack of each
    thread; `faulthandler.cancel_dump_traceback_later` cancels this.

    A native thread does this, because a hanging thread may hold the interpreter lock. A supervisor
    that restarts the node of a robot must not wait forever.
    """
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """
    Defer SIGINT and SIGTERM to the end of the block, so that no child process is started without
    being registered; it would outlive this process. No effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    held = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for each in received:
        signal.raise_signal(each)


def policy_server() -> NoReturn:
    run_main('lerobot_serve.server.node')


def policy_router() -> NoReturn:
    run_main('lerobot_serve.router.node')


def edge_controller() -> NoReturn:
    run_main('lerobot_serve.edge.node')


def gateway() -> NoReturn:
    run_main('lerobot_serve.gateway.node')


def learner() -> NoReturn:
    run_main('lerobot_serve.learner.node')


def sim_robot() -> NoReturn:
    run_main('lerobot_serve.sim.node')
