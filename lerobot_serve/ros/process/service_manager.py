# SPDX-License-Identifier: Apache-2.0
"""
Reports to the service manager that started this process, as sd_notify(3) of systemd does: when it
is ready, that its threads go on, and when it stops.

A manager with a watchdog restarts a process that does not report for some time. `Heartbeats`
withholds the report while a thread stands still. Without a manager nothing is sent. Plain.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
import os
import socket
import threading

READY, ALIVE, STOPPING = 'READY=1', 'WATCHDOG=1', 'STOPPING=1'
SOCKET, WATCHDOG_TIME, WATCHDOG_PROCESS = 'NOTIFY_SOCKET', 'WATCHDOG_USEC', 'WATCHDOG_PID'
VARIABLES = (SOCKET, WATCHDOG_TIME, WATCHDOG_PROCESS)
# systemd advises a half; a busy machine may delay one report
REPORTS_A_WATCHDOG = 3
# the executor wakes once a second when it has nothing to do
STILL_LEAST_S = 2.5


class ServiceManager:
    """
    The service manager, if there is one. `watchdog_s` is the time after which it restarts a
    process that does not report, 0 without a watchdog. Any thread.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Take the variables out of `environment` (default os.environ): children are not meant."""
        found = os.environ if environment is None else environment
        self._variables = {name: found.pop(name) for name in VARIABLES if name in found}
        address, time_us, process = (self._variables.get(name, '') for name in VARIABLES)
        # a name that begins with @ has no file
        self._address = f'\0{address[1:]}' if address.startswith('@') else address
        is_meant = process in ('', str(os.getpid()))
        has_watchdog = bool(address) and is_meant and time_us.isdecimal()
        self.watchdog_s = int(time_us) / 1e6 if has_watchdog else 0.0

    @property
    def report_period_s(self) -> float:
        """The time between two reports [s]; 0 without a watchdog."""
        return self.watchdog_s / REPORTS_A_WATCHDOG

    def give_back(self, environment: MutableMapping[str, str]) -> None:
        """Put the variables into `environment`, for what replaces this process."""
        environment.update(self._variables)

    def notify(self, state: str) -> bool:
        """Send a state; return whether it was sent."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # a manager that does not read must not block the threads of a robot
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except OSError:
            return False
        return True


class Heartbeats:
    """Counters that grow while their threads go on. Any thread."""

    def __init__(self, still_s: float) -> None:
        """A thread stands still when its counter does not grow for `still_s`, 2.5 s at least."""
        self._still_ns = int(max(still_s, STILL_LEAST_S) * 1e9)
        self._lock = threading.Lock()
        self._counters: dict[str, Callable[[], int]] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def add(self, thread: str, counter: Callable[[], int]) -> None:
        """Watch the counter of a thread from now on."""
        with self._lock:
            self._counters[thread] = counter

    def still(self, now_ns: int) -> list[str]:
        """Return the threads that stand still."""
        found = []
        with self._lock:
            for thread, counter in self._counters.items():
                count = counter()
                before, since_ns = self._seen.get(thread, (count - 1, now_ns))
                if count != before:
                    self._seen[thread] = count, now_ns
                elif now_ns - since_ns >= self._still_ns:
                    found.append(thread)
        return found
