# SPDX-License-Identifier: Apache-2.0
"""Control the policy kind `steered` of test/support/plugins/steered from a test."""

from __future__ import annotations

import os
from pathlib import Path

from support.paths import PLUGINS

PLUGIN = PLUGINS / 'steered'
PLENTY = 10_000


class Fifo:
    """A pipe with a name, of which a policy takes bytes; a byte is one leave to go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def close_gate(self) -> None:
        """From now on nobody continues without leave."""
        os.mkfifo(self.path)
        # both directions, so that bytes stay while the policy opens and closes its end
        self._handle = os.open(self.path, os.O_RDWR)

    def let(self, count: int = 1) -> None:
        """Let so many go on."""
        os.write(self._handle, bytes(count))

    def open_gate(self) -> None:
        """Let everybody go on, for good."""
        if self._handle is not None:
            self.let(PLENTY)

    def end(self) -> None:
        """With this end goes all leave that was not taken."""
        if self._handle is not None:
            os.close(self._handle)


class Steering:
    """One folder for one policy; made before the server starts, ended after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.loads, self.turns = Fifo(folder / 'loads'), Fifo(folder / 'turns')

    def path(self, **options: object) -> str:
        """Return what to give as policy_path."""
        return f'{self.folder}?{"&".join(f"{k}={v}" for k, v in options.items())}'

    def folder_path(self, **options: object) -> str:
        """Return what to give as policy_path where the path must be that of a folder."""
        text = '&'.join(f'{k}={v}' for k, v in options.items())
        (self.folder / 'options').write_text(text)
        return str(self.folder)

    def events(self, kind: str = '') -> list[str]:
        """Return what happened so far, of one kind or all."""
        file = self.folder / 'events'
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(kind)]

    def open_gates(self) -> None:
        for fifo in (self.loads, self.turns):
            fifo.open_gate()

    def end(self) -> None:
        for fifo in (self.loads, self.turns):
            fifo.end()
