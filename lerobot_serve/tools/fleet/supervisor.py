# SPDX-License-Identifier: Apache-2.0
"""
Run the processes of a fleet: start all, restart what dies, end all in order.

Main thread: a child is bound to the thread that starts it. It alone reads the pipes, and looks at
ended children and signals every POLL_S. Its output must not block, see queued_lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import os
import selectors
import signal
import time

from lerobot_serve.child_process import Process
from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.process import Action, decide, FleetProcess, Stage
from lerobot_serve.tools.fleet.process_output import LineBuffer, PrefixedOutput

POLL_S = 0.05
PIECE_BYTES = 1 << 16
# what a pipe holds at most; a process that inherited it may write on for ever
LAST_PIECES = 16
# a node ends itself within 15 s after an orderly end was asked for; a drain comes before
STAGE_LIMIT_S = 25.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORDS = {
    Stage.LOOP: 'loop',
    Stage.LEARNER: 'learner',
    Stage.ROBOT: 'robots',
    Stage.SIMULATION: 'simulations',
    Stage.GATEWAY: 'gateway',
    Stage.ROUTER: 'router',
    Stage.SERVER: 'servers',
}
# without one of these robots have no policy; without learner or loop they go on as they are
NEEDED = (Stage.ROBOT, Stage.SIMULATION, Stage.GATEWAY, Stage.ROUTER, Stage.SERVER)
StartProcess = Callable[[FleetProcess], Process[bytes]]


class Child:
    """One process of the plan, and the process that runs for it now, if any."""

    def __init__(self, planned: FleetProcess) -> None:
        self.planned = planned
        self.running: Process[bytes] | None = None
        self.lines = LineBuffer()
        self.started_s = 0.0
        self.restart_at_s: float | None = None
        self.quick_failures = 0
        self.is_given_up = False
        self.status = 0

    @property
    def is_active(self) -> bool:
        """Whether it runs, or will be restarted."""
        return self.running is not None or self.restart_at_s is not None


class Supervisor:
    """Runs a plan until a signal, or until it cannot run."""

    def __init__(
        self,
        plan: Sequence[FleetProcess],
        start: StartProcess,
        output: PrefixedOutput,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = [Child(planned) for planned in plan]
        self._start_process, self._output, self._clock = start, output, clock
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._is_heard = True

    def run(self) -> int:
        """
        Return 0 when all ended in order after a signal, 1 if a process failed for good. Raises
        UserError, OSError when a process cannot be started.
        """
        before = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        try:
            for child in self._children:
                self._start(child)
            self._say(f'{len(self._children)} processes started; Ctrl-C ends them in order')
            # a page without a fleet is not a fleet
            while self._may_go_on() and any(
                child.is_active for child in self._children if child.planned.stage in WORDS
            ):
                self._step()
        finally:
            # also after an error: a robot that is killed does not come to rest
            self._end()
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        return int(any(child.is_given_up or child.status for child in self._children))

    def _may_go_on(self) -> bool:
        return self._is_heard and not self._stops and not self._failed_stage()

    def _on_signal(self, number: int, frame: object) -> None:
        # a terminal that is closed sends several SIGHUP; only a person's second signal kills
        self._stops = 1 if number == signal.SIGHUP and self._stops else self._stops + 1

    def _failed_stage(self) -> Stage | None:
        """Return a stage without which the fleet cannot run: all of it ended, one given up."""
        for stage in NEEDED:
            children = [child for child in self._children if child.planned.stage == stage]
            if any(c.is_given_up for c in children) and not any(c.is_active for c in children):
                return stage
        return None

    def _start(self, child: Child) -> None:
        # blocked in the child, too, until its node waits for them: no traceback of its imports
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process = self._start_process(child.planned)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.running, child.restart_at_s = process, None
        child.started_s, child.lines = self._clock(), LineBuffer()
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)

    def _step(self) -> None:
        """Write the output of the children, note ended ones, and restart those that are due."""
        for key, _ in self._selector.select(POLL_S):
            self._read(key.data)
        for child in self._children:
            if child.running and child.running.poll() is not None:
                self._on_ended(child)
            if child.restart_at_s is not None and self._clock() >= child.restart_at_s:
                self._restart(child)

    def _restart(self, child: Child) -> None:
        """Start a process again; one that cannot be started has failed again."""
        child.restart_at_s = None
        try:
            self._start(child)
        except (OSError, UserError) as error:
            self._say(f'{child.planned.name} cannot be started: {error}')
            child.status, child.started_s = 1, self._clock()
            self._decide(child)

    def _read(self, child: Child) -> bool:
        """Write the next piece of output; return whether there may be more."""
        assert child.running and child.running.stdout
        try:
            piece = os.read(child.running.stdout.fileno(), PIECE_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.running.stdout)
        for line in child.lines.add(piece):
            self._write(child.planned.name, line)
        return bool(piece)

    def _on_ended(self, child: Child) -> None:
        process = child.running
        assert process and process.stdout
        for _ in range(LAST_PIECES):
            if not self._read(child):
                break
        for line in child.lines.rest():
            self._write(child.planned.name, line)
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.stdout)
        process.stdout.close()
        child.running, child.status = None, process.returncode
        if self._may_go_on():
            self._decide(child)

    def _decide(self, child: Child) -> None:
        """Restart, leave or give up a process that ended by itself."""
        decision = decide(child.status, self._clock() - child.started_s, child.quick_failures)
        child.quick_failures = decision.quick_failures
        name, how = child.planned.name, status_text(child.status)
        if decision.action is Action.LEAVE:
            self._say(f'{name} ended in order; it is not restarted')
        elif decision.action is Action.RESTART:
            child.restart_at_s = self._clock() + decision.delay_s
            self._say(f'{name} ended with {how}; it is restarted in {decision.delay_s:g} s')
        else:
            child.is_given_up = True
            self._say(
                f'{name} ended with {how}, {decision.quick_failures} times in a row soon after '
                f'its start; it is not restarted. Its last line: {child.lines.last_line or "none"}'
            )

    def _end(self) -> None:
        """End stage by stage, the robots first; a second signal kills what is left."""
        if stage := self._failed_stage():
            self._say(f'the fleet cannot run without its {WORDS[stage]}; ending')
        for child in self._children:
            child.restart_at_s = None
        # the first signal of an end that began without one is not the second
        signals = max(1, self._stops)
        for stage in reversed(Stage):
            self._end_stage([c for c in self._children if c.planned.stage == stage], signals)

    def _end_stage(self, children: list[Child], signals: int) -> None:
        running = [child for child in children if child.running]
        if not running:
            return
        self._say(f'ending {", ".join(child.planned.name for child in running)}')
        for child in running:
            if child.running:
                child.running.send_signal(signal.SIGINT)
        deadline_s = self._clock() + STAGE_LIMIT_S
        while any(child.running for child in children) and self._stops <= signals:
            if self._clock() > deadline_s:
                break
            self._step()
        for child in children:
            if child.running:
                self._say(f'{child.planned.name} is killed')
                child.running.kill()
                child.running.wait()
                self._on_ended(child)

    def _kill(self) -> None:
        """Kill what an error left."""
        for child in self._children:
            if child.running:
                child.running.kill()
                child.running.wait()
        self._selector.close()

    def _say(self, text: str) -> None:
        self._write('', text)

    def _write(self, name: str, line: str) -> None:
        """Write a line; without a reader the fleet is ended in order."""
        if not self._is_heard:
            return
        try:
            self._output.write(name, line) if name else self._output.own(line)
        except OSError:
            self._is_heard = False


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end the fleet; nohup ignores SIGHUP, and that stays."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(s for s in STOP_SIGNALS if not (is_nohup and s is signal.SIGHUP))


def status_text(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f'exit status {status}'
    try:
        return f'signal {signal.Signals(-status).name}'
    except ValueError:
        return f'signal {-status}'
