# SPDX-License-Identifier: Apache-2.0
"""
Explain an incident by `lerobot-serve diagnose` over a folder of traces, in a process of its own
with a time limit: traces of a day take long, and nothing else waits for them. Threads of the HTTP
server.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
import shlex
import threading

from lerobot_serve.child_process import DEVNULL, PIPE, Process, start, TimeoutExpired
from lerobot_serve.tools.processes.verb_command import verb_command

LIMIT_S, TEXT_LIMIT, KEPT = 60.0, 200_000, 50
# exit status of diagnose without a record of the robot or the time
NOT_COVERED = 4
NO_FOLDER = (
    'there is no explanation: the dashboard was started without --trace-folder, the folder in '
    'which the traces of robots, router and servers are'
)
NO_ROBOT = (
    'diagnose explains robots; for slots and rollouts: `lerobot-serve rollout history`, for a '
    'server its log'
)
BUSY = 'another explanation is being made; ask again when it is done'


@dataclass(frozen=True, slots=True)
class IncidentPlace:
    """Where an incident is in traces: the client, empty for no robot, and its time in UTC."""

    client: str
    instant: str


class Explanations:
    """One process at a time; texts are kept. Any thread; `close` in one."""

    def __init__(self, folder: Path | None, limit_s: float = LIMIT_S) -> None:
        self._folder, self._limit_s = folder, limit_s
        self._alone, self._lock = threading.Lock(), threading.Lock()
        self._known: OrderedDict[str, str] = OrderedDict()
        self._running: Process[str] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End a process that runs, and start none from now on."""
        with self._lock:
            self._is_closed = True
            if self._running:
                self._running.kill()

    def explain(self, number: str, place: IncidentPlace) -> str:
        """Return the explanation of an incident, or why there is none. Blocks."""
        if known := self._known.get(number):
            return known
        if self._folder is None:
            return NO_FOLDER
        if not place.client:
            return NO_ROBOT
        if not self._alone.acquire(blocking=False):
            return BUSY
        try:
            text, is_final = self._run(self._folder, place)
            if is_final:
                self._known[number] = text
                if len(self._known) > KEPT:
                    self._known.popitem(last=False)
        finally:
            self._alone.release()
        return text

    def _run(self, folder: Path, place: IncidentPlace) -> tuple[str, bool]:
        """Run the verb; return its text, and whether another run would give the same."""
        words = [
            *('diagnose', str(folder.absolute())),
            *(f'--client={place.client}', f'--at={place.instant}'),
        ]
        with self._lock:
            if self._is_closed:
                return 'the dashboard ends', False
            self._running = process = start(
                verb_command(words),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                text=True,
                errors='replace',
                start_new_session=True,
            )
        try:
            written, complaint = process.communicate(timeout=self._limit_s)
        except TimeoutExpired:
            process.kill()
            process.communicate()
            return (
                f'there is no explanation within {self._limit_s:g} s: the traces are large; run '
                f'`{shlex.join(["lerobot-serve", *words])}`',
                True,
            )
        finally:
            self._running = None
        if process.returncode in (0, NOT_COVERED):
            # a trace is written some seconds later
            return written[:TEXT_LIMIT].strip(), process.returncode == 0
        return f'diagnose failed: {complaint.strip()[-2000:] or process.returncode}', False
