# SPDX-License-Identifier: Apache-2.0
"""
The commands of the demo: the words that run are the words that are printed. Plain; one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import shlex

from lerobot_serve.tools.processes import executable_path

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
