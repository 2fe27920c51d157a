# SPDX-License-Identifier: Apache-2.0
"""
Run a node in its process: context, executor, threads, signals and an orderly shutdown.

One thread waits for SIGINT or SIGTERM, the main thread for `stop_requested`. One thread spins the
executor, whose callbacks only enqueue. All other threads of a node are started here too. Shutdown
calls the `before_shutdown` callbacks while everything runs, sets `stop`, joins each thread with a
timeout and then destroys the node. A thread that fails ends the process with its error and exit
status 1; a UserError is printed as one line. A thread that loads a policy cannot be interrupted;
it ends with the process, whose status is 0.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import faulthandler
import itertools
import signal
import sys
import threading
import time
import traceback
import warnings

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from lerobot_serve.allocator import keep_freed_memory
from lerobot_serve.entry_points import (
    exit_at_once,
    EXIT_TIMEOUT_S,
    exit_within,
    SIGNALS,
)
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros.process import command_line, fastdds_profile
from lerobot_serve.ros.process.command_line import NodeCommand
from lerobot_serve.ros.process.event_threads import EventThreads, OwnRestart, STUCK_LOOKS
from lerobot_serve.ros.process.executor import RobustExecutor
from lerobot_serve.ros.process.rcl_errors import readable_rcl_error
from lerobot_serve.ros.process.service_manager import (
    ALIVE,
    Heartbeats,
    READY,
    ServiceManager,
    STOPPING,
)
from lerobot_serve.shared_memory import damaged_ports, segments
from lerobot_serve.shared_memory.damaged_ports import ReplacedPorts
from lerobot_serve.shared_memory.ports import PortGuard

JOIN_TIMEOUT_S = 5.0
LOADING_GRACE_S = 3.0
SPIN_S = 1.0
PORT_CHECK_S = 1.0
CHECKS_PER_MAP = 5
BLOCKED_TEXT = (
    '{} was blocked: a process was killed while it sent to this one. Up to {} messages are lost; '
    'the port is renewed'
)
STILL_TEXT = (
    'standing still: {}. The service manager ends and restarts this process unless it continues '
    'within {:g} s'
)
DEAF_TEXT = 'shared-memory receive is stuck in this process: {} for {:g} s'
LOCKED_UP_TEXT = (
    'the middleware has locked itself up ({} has waited for a lock for {:g} s, '
    'eProsima/Fast-DDS#6502): this process hears nothing'
)
# a reader renews a damaged port within five seconds
DEAF_S = 10.0
REPLACED_TEXT = (
    '{} belongs to another process since the one that had it was killed; what this process sent '
    'there since then is lost. The port is renewed'
)


class NodeRuntime:
    """
    Owns the context, the executor and every thread of one process. Built and closed by one thread.
    """

    def __init__(self, arguments: list[str] | None = None) -> None:
        """Start ROS with the command line `arguments` (default sys.argv). Raises UserError."""
        segments.remove_dead_segments()
        damaged_ports.mark_dead_ports()
        fastdds_profile.apply_shipped_profile()
        keep_freed_memory()
        self.stop_requested = threading.Event()
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.has_hanging_threads = False
        # at the end, one that loads a policy; it is not a fault
        self.has_loading_threads = False
        self.context = rclpy.Context()
        try:
            rclpy.init(
                args=arguments,
                context=self.context,
                signal_handler_options=SignalHandlerOptions.NO,
            )
        except Exception as error:
            # rcl raises its own error types for an invalid command line or parameter file
            raise UserError(
                'invalid command line or parameter file: '
                f'{readable_rcl_error(str(error)) or type(error).__name__}'
            ) from error
        self.executor = RobustExecutor(context=self.context)
        self._manager = ServiceManager()
        self._spins = 0
        # why this process hears nothing
        self._deaf = ''
        # for a process that has no other purpose than its node
        self.own_restart: OwnRestart | None = None
        # threads whose standstill ends the process, where a service manager has a watchdog
        self.heartbeats = Heartbeats(self._manager.report_period_s)
        self.heartbeats.add('executor', lambda: self._spins)
        self._starters: list[Callable[[], None]] = []
        self._shutdown_callbacks: list[Callable[[], None]] = []
        self._closers: list[Callable[[], None]] = []
        self._adding = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._wakes: list[tuple[threading.Thread, Callable[[], object]]] = []
        self._loading: list[threading.Thread] = []

    def add(self, node: Node) -> None:
        """Add the node to the executor, and warn when images may be lost."""
        self.executor.add_node(node)
        text = fastdds_profile.own_shared_memory_warning(rclpy.get_rmw_implementation_identifier())
        if text:
            node.get_logger().warning(text)

    def thread(
        self,
        name: str,
        target: Callable[[], None],
        wake: Callable[[], object] | None = None,
        *,
        loads: bool = False,
    ) -> threading.Thread:
        """
        Start and return a thread that runs `target` until `stop` is set. Any thread.

        `wake` is called after `stop` is set, for a target that waits for another condition. One
        that `loads` a policy may take no notice of `stop`, and then ends with the process.
        """
        thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
        with self._adding:
            # drop finished threads: a node may be configured many times
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            self._wakes = [each for each in self._wakes if each[0].is_alive()]
            self._loading = [each for each in self._loading if each.is_alive()]
            if loads:
                self._loading.append(thread)
            if wake:
                self._wakes.append((thread, wake))
            thread.start()
        return thread

    def why_not_alive(self) -> str:
        """
        Return which threads stand still, or that nothing is heard; empty for none, and at the end.
        Any thread.
        """
        if self.stop.is_set():
            return ''
        still = self.heartbeats.still(time.monotonic_ns())
        return f'standing still: {", ".join(still)}' if still else self._deaf

    def allow_restart(self) -> None:
        """Let this process be replaced when it hears nothing: it has only its node."""
        self.own_restart = OwnRestart(self._manager)

    def on_unsound_ports(self) -> None:
        """Start again; return after the last time in a row: the ports may yet be renewed."""
        problem = damaged_ports.find_problem({}) or 'a port has no file'
        if self.own_restart:
            self.own_restart.start_again(f'{problem}: this process would hear nothing')

    def on_started(self, starter: Callable[[], None]) -> None:
        """
        Call `starter` in the main thread once the executor spins. Its UserError ends the process.
        """
        self._starters.append(starter)

    def before_shutdown(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the main thread before the shutdown, with all threads running."""
        self._shutdown_callbacks.append(callback)

    def on_close(self, closer: Callable[[], None]) -> None:
        """Call `closer` after `stop` is set and before the threads are joined."""
        self._closers.append(closer)

    def spin_in_background(self) -> None:
        # wake alone does not suffice: an executor without work waits again
        self.thread('executor', self._spin, lambda: self.executor.create_task(no_op))

    def start(self) -> None:
        """
        Spin the executor, guard the ports, report to the service manager, then call the
        `on_started` callbacks. Raises UserError.
        """
        self.spin_in_background()
        self.thread('ports', self._guard_middleware)
        # before a policy is loaded, which may take longer than a manager waits
        self._manager.notify(READY)
        if self._manager.watchdog_s:
            # the manager's SIGABRT leaves the stacks of all threads in the log
            faulthandler.enable()
            self.thread('watchdog', self._report_alive)
        for starter in self._starters:
            starter()

    def close(self) -> None:
        """End every thread, then the nodes, then ROS. May be called twice."""
        self.end_threads()
        # a hanging thread may still use the nodes
        if not self.has_hanging_threads:
            self.destroy_nodes()

    def end_threads(self) -> None:
        """
        Call the shutdown callbacks and join every thread, with a timeout; `has_hanging_threads`
        is set when one still runs, `has_loading_threads` when one still loads a policy.
        """
        self.stop_requested.set()
        self._manager.notify(STOPPING)
        callbacks, self._shutdown_callbacks = self._shutdown_callbacks, []
        for callback in callbacks:
            if not self.stop.is_set():
                callback()
        self.stop.set()
        for closer in self._closers:
            closer()
        self._closers.clear()
        # a thread may have started another one
        while self._threads:
            self._join()

    def _join(self) -> None:
        """Wake all present threads and join each."""
        with self._adding:
            threads, self._threads = self._threads, []
            wakes, self._wakes = self._wakes, []
        for _, wake in wakes:
            wake()
        for thread in threads:
            loads = thread in self._loading
            thread.join(LOADING_GRACE_S if loads else JOIN_TIMEOUT_S)
            if thread.is_alive() and loads:
                self.has_loading_threads = True
            elif thread.is_alive():
                print(
                    f'thread {thread.name} still runs after {JOIN_TIMEOUT_S:g} s',
                    file=sys.stderr,
                )
                self.has_hanging_threads = True

    def destroy_nodes(self) -> None:
        """Destroy the nodes, then shut ROS down. The middleware may block; there is no timeout."""
        if not damaged_ports.wait_until_sound():
            problem = damaged_ports.find_problem({})
            print(f'a port is closed as it is: {problem or "it has no file"}', file=sys.stderr)
        for node in list(self.executor.get_nodes()):
            self.executor.remove_node(node)
            node.destroy_node()
        self.executor.shutdown(timeout_sec=JOIN_TIMEOUT_S)
        if self.context.ok():
            self.context.shutdown()

    def _guard_middleware(self) -> None:
        # in looks: a process that was stopped has not looked, and its ports are renewed soon
        guard, timers, unsound_looks = PortGuard(), EventThreads(), 0
        with contextlib.closing(ReplacedPorts()) as replaced:
            for number in itertools.count():
                if self.stop.wait(PORT_CHECK_S):
                    return
                if stuck := timers.find_stuck():
                    self._leave(LOCKED_UP_TEXT.format(stuck, STUCK_LOOKS * PORT_CHECK_S))
                    return
                problem = damaged_ports.find_problem({})
                unsound_looks = unsound_looks + 1 if problem else 0
                is_deaf = unsound_looks * PORT_CHECK_S > DEAF_S
                self._set_deaf(problem if is_deaf else '')
                for port in guard.check():
                    self._log_error(BLOCKED_TEXT.format(port.file.name, port.messages))
                # reads the whole memory map of the process
                for file in replaced.check() if number % CHECKS_PER_MAP == 0 else ():
                    self._log_error(REPLACED_TEXT.format(file.name))

    def _leave(self, why: str) -> None:
        """Start this process again, or end it: calls of the middleware may not return any more."""
        self._deaf = why
        # traces have all that happened until then: they are written every 50 ms
        if self.own_restart:
            self.own_restart.start_again(why)
        self.failure = UserError(why)
        print(f'error: {why}', file=sys.stderr)
        self._fail()

    def _set_deaf(self, problem: str) -> None:
        text = DEAF_TEXT.format(problem, DEAF_S) if problem else ''
        is_new, self._deaf = bool(text and not self._deaf), text
        if is_new:
            self._log_error(text)
            if self.own_restart:
                self.own_restart.start_again(text)

    def _report_alive(self) -> None:
        """Report while all threads go on. Thread `watchdog`."""
        known: list[str] = []
        while True:
            still = self.heartbeats.still(time.monotonic_ns())
            if still and still != known:
                self._log_error(STILL_TEXT.format(', '.join(still), self._manager.watchdog_s))
            elif not still and not self._deaf:
                self._manager.notify(ALIVE)
            known = still
            if self.stop.wait(self._manager.report_period_s):
                return

    def _log_error(self, text: str) -> None:
        for node in list(self.executor.get_nodes())[:1]:
            node.get_logger().error(text)

    def _spin(self) -> None:
        while not self.stop.is_set():
            self.executor.spin_once(timeout_sec=SPIN_S)
            self._spins += 1

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except ExternalShutdownException:
            self._fail()
        except UserError as error:
            self.failure = self.failure or error
            print(f'error: {error}', file=sys.stderr)
            self._fail()
        except BaseException as error:
            self.failure = self.failure or error
            traceback.print_exc()
            self._fail()

    def _fail(self) -> None:
        self.stop.set()
        self.stop_requested.set()


def run(
    create: Callable[[NodeRuntime], Node],
    arguments: list[str] | None = None,
    command: NodeCommand | None = None,
) -> int:
    """
    Run one node until SIGINT or SIGTERM; return the exit status.

    `create` builds the node and starts its threads. Its UserError or ParameterError is printed as
    one line. With a `command`, `--help` prints its help, and an argument without effect is
    rejected.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if command and command_line.is_help_requested(words):
        print(command_line.help_text(command))
        return 0
    # blocked before any other thread exists, so that only the signal thread receives them
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    started = threading.Event()
    runtime = None
    try:
        runtime = NodeRuntime(arguments)
        if command:
            # rcl has already reported its own errors
            command_line.check_arguments(command, words)
        watcher = threading.Thread(
            target=_watch_signals,
            args=(runtime.stop_requested, started),
            name='signals',
            daemon=True,
        )
        watcher.start()
        runtime.allow_restart()
        runtime.add(create(runtime))
        if not damaged_ports.wait_until_sound():
            runtime.on_unsound_ports()
        runtime.start()
        started.set()
        runtime.stop_requested.wait()
    except (UserError, ParameterError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    finally:
        started.set()
        if runtime:
            # coroutines that the executor never started are irrelevant to the operator
            warnings.filterwarnings('ignore', message='coroutine .* was never awaited')
            _close(runtime)
    return 1 if runtime.failure else 0


def _close(runtime: NodeRuntime) -> None:
    """Close the runtime; end the process when threads hang, or one still loads a policy."""
    runtime.end_threads()
    if runtime.has_hanging_threads:
        exit_within(EXIT_TIMEOUT_S)
        exit_at_once(1)
    exit_within(EXIT_TIMEOUT_S)
    runtime.destroy_nodes()
    if runtime.has_loading_threads:
        # the end of the interpreter would wait for it
        exit_at_once(1 if runtime.failure else 0)
    faulthandler.cancel_dump_traceback_later()


def no_op() -> None:
    pass


def _watch_signals(stop_requested: threading.Event, started: threading.Event) -> None:
    """Set the event at a signal; exit at once when the node is still loading."""
    signal.sigwait(SIGNALS)
    stop_requested.set()
    if not started.wait(LOADING_GRACE_S):
        # the loading thread may hold the interpreter's lock
        exit_at_once(0)
