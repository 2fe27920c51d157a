# SPDX-License-Identifier: Apache-2.0
"""A router as a lifecycle manager and an operating system see it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import re
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState

from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import GetStatus
from support.nodes.router_rig import ROUTER, RouterRig
from support.nodes.service_asking import ask as ask_service

MEMORY = 'VmRSS'
PORT = re.compile(r'/dev/shm/fast\w+_port\d+')


class Manager:
    """Goes through transitions and looks at /proc; used by the test's thread."""

    def __init__(self, rig: RouterRig, name: str = ROUTER) -> None:
        self.rig, self.name = rig, name
        self._clients: dict[str, Any] = {}

    def ask(self, kind: type, service: str, request: Any) -> Any:
        """Call a service, of whatever node."""
        if service not in self._clients:
            self._clients[service] = self.rig.node.create_client(kind, service)
        return ask_service(self.rig.node, self._clients[service], request)

    @property
    def pid(self) -> int:
        return self.rig.fleet.processes['router'].pid

    def change(self, label: str) -> bool:
        """Ask for a transition; return whether it went well."""
        request = ChangeState.Request(transition=Transition(label=label))
        return self.ask(ChangeState, f'{self.name}/change_state', request).success

    def changes(self, *labels: str) -> None:
        for label in labels:
            assert self.change(label), label

    @property
    def state(self) -> str:
        return self.ask(GetState, f'{self.name}/get_state', GetState.Request()).current_state.label

    def wait_for(self, state: str) -> None:
        """Wait for the end of a transition; sessions may be opened a little before."""
        self.rig.wait(lambda: self.state == state, f'it has become {state}')

    def status(self) -> ServerStatus:
        """Return what the router says when it is asked."""
        return self.ask(GetStatus, f'{self.name}/get_status', GetStatus.Request()).status

    def drops(self) -> dict[str, int]:
        return {drop.reason: drop.count for drop in self.status().dropped}

    def sessions_at(self, server: str) -> int:
        """Return how many sessions a policy server has, as it says itself."""
        service = f'/{server}/policy_server/get_status'
        return self.ask(GetStatus, service, GetStatus.Request()).status.active_sessions

    # the operating system's view

    def threads(self) -> set[str]:
        """Return the names of its threads, by id: two of one name count twice."""
        found = set()
        for task in Path(f'/proc/{self.pid}/task').iterdir():
            # one that has just ended is none that stays; the system says so in two ways
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.add(f'{task.name} {(task / "comm").read_text().strip()}')
        return found

    def files(self) -> int:
        return len(os.listdir(f'/proc/{self.pid}/fd'))

    def watches_ports(self) -> bool:
        """Return whether it holds the ports that it has mapped, as it does from its first look."""
        opened = []
        for file in Path(f'/proc/{self.pid}/fd').iterdir():
            # it may be closed meanwhile
            with contextlib.suppress(FileNotFoundError):
                opened.append(os.readlink(file))
        # another look of it opens its own ports one after the other, for a moment
        return sum(bool(PORT.fullmatch(file)) for file in opened) > 1

    def memory_mb(self) -> float:
        lines = Path(f'/proc/{self.pid}/status').read_text().splitlines()
        (line,) = [line for line in lines if line.startswith(MEMORY)]
        return int(line.split()[1]) / 1024


def assert_well_ended(rig: RouterRig, name: str, process: Any, limit_s: float = 15.0) -> None:
    """Wait for the end: in time, by itself, and without a word of trouble."""
    assert process.wait(limit_s) == 0, rig.log(name)
    log = rig.log(name)
    assert 'Traceback' not in log
    assert 'did not end' not in log
