# SPDX-License-Identifier: Apache-2.0
"""
The link between robots, router and servers of the demo (ROS 2, or Zenoh on the loopback), and the
commands of the demo: the words that run are the words that are printed. Plain; one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
import shlex
import socket

from lerobot_serve.contract.names import OVER_ZENOH
from lerobot_serve.tools.processes import executable_path

ROS, ZENOH = LINKS = 'ros', 'zenoh'
LOOPBACK = '127.0.0.1'


@dataclass(frozen=True, slots=True)
class DemoLink:
    """
    The parameters of the link; `endpoints` maps processes to the Zenoh endpoints that they listen
    on, and is empty over ROS 2. Any thread.
    """

    endpoints: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ZENOH if self.endpoints else ROS

    def server_name(self, node: str) -> str:
        """Return how the router names a server."""
        return f'{OVER_ZENOH}{node}' if self.endpoints else node

    def listening(self, process: str) -> dict[str, list[str]]:
        """Return the parameters of a process that others connect to."""
        return self._parameter('zenoh_listen', [process])

    def connecting(self, processes: Iterable[str]) -> dict[str, list[str]]:
        """Return the parameters of a process that connects to others."""
        return self._parameter('zenoh_connect', processes)

    def robot_parameters(self, router: str) -> dict[str, str | list[str]]:
        """Return the parameters of an edge that reaches its servers through the router."""
        return {'link': ZENOH, **self.connecting([router])} if self.endpoints else {}

    def _parameter(self, name: str, processes: Iterable[str]) -> dict[str, list[str]]:
        if not self.endpoints:
            return {}
        return {name: [self.endpoints[process] for process in processes]}


def zenoh_link(processes: Iterable[str]) -> DemoLink:
    """Return a link over Zenoh, with a free TCP port of this machine for each process."""
    endpoints = {}
    with ExitStack() as held:
        # all at once, so that no two get the same port
        for process in processes:
            found = held.enter_context(socket.socket())
            found.bind((LOOPBACK, 0))
            endpoints[process] = f'tcp/{LOOPBACK}:{found.getsockname()[1]}'
    return DemoLink(endpoints)


PROGRAM, DOMAIN = 'lerobot-serve', 'ROS_DOMAIN_ID'


@dataclass(frozen=True, slots=True)
class VerbCommand:
    """A command line of `lerobot-serve`: the verb with its arguments, and the ROS domain."""

    words: tuple[str, ...]
    domain: int

    @property
    def text(self) -> str:
        """The line as a person types it in a second terminal."""
        return f'{DOMAIN}={self.domain} {shlex.join((PROGRAM, *self.words))}'

    @property
    def command(self) -> list[str]:
        """The installed command with the words that are printed. Raises UserError."""
        return [str(executable_path(PROGRAM)), *self.words]


@dataclass(frozen=True, slots=True)
class KillCommand:
    """The end of one process, which has no verb."""

    pid: int

    @property
    def text(self) -> str:
        return f'kill -9 {self.pid}'


Command = VerbCommand | KillCommand


@dataclass(slots=True)
class TypedCommand:
    """
    A command with what it prints. `status` is None while it runs; `remark` explains the command.
    """

    time_s: float
    act: str
    text: str
    remark: str = ''
    lines: list[str] = field(default_factory=list)
    status: int | None = None


def join_text(domain: int) -> str:
    """Return how a second terminal joins the demo."""
    return f'second terminal: `make shell`, then {VerbCommand(("robots",), domain).text}'
