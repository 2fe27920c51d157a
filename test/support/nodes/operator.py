# SPDX-License-Identifier: Apache-2.0
"""An operator at a command line, in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
from typing import Any

import pytest

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.operate import fleet_client
from lerobot_serve.tools.operate.discovery import graph_search
from lerobot_serve.tools.operate.fleet_client import FleetClient

TIMEOUT = ('--timeout-s', '20')


class Operator:
    """Runs verbs; what a verb prints is in `out` and `error` until the next one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.error = ''

    def __call__(self, *words: str) -> int:
        """Run a verb; return its exit status."""
        self._capsys.readouterr()
        status = main([*words])
        self.out, self.error = self._capsys.readouterr()
        return status

    def does(self, *words: str) -> str:
        """Run a verb without a question, which must succeed; return its output."""
        assert self(*words, '--yes', *TIMEOUT) == 0, self.error
        return self.out

    def prints(self, *words: str) -> str:
        """Run a verb that changes nothing, which must succeed; return its output."""
        assert self(*words, *TIMEOUT) == 0, self.error
        return self.out

    def reads(self, *words: str) -> Any:
        """Run a verb that prints JSON, which must succeed; return the object."""
        assert self(*words, '--json', *TIMEOUT) == 0, self.error
        return json.loads(self.out)

    def is_refused(self, *words: str) -> str:
        """Run a verb without a question, which must be refused; return the error."""
        return self.is_refused_within(TIMEOUT[1], *words)

    def is_refused_within(self, timeout_s: str, *words: str) -> str:
        """Run a verb with this time limit, which must be refused; return the error."""
        return self.ends_with(1, *words, '--timeout-s', timeout_s)

    def needs_yes(self, *words: str) -> str:
        """Run a verb that asks, which must be refused without a terminal; return the error."""
        return self.ends_with(2, *words, '--timeout-s', TIMEOUT[1])

    def ends_with(self, status: int, *words: str) -> str:
        """Run a verb without a question, which must end so; return the error."""
        assert self(*words) == status, (self.out, self.error)
        assert self.error.count('Traceback') == 0
        return self.error


class _LentClient(FleetClient):
    """A client that stays open: a verb saves the half second of its discovery."""

    def __call__(self, timeout_s: float, **_: object) -> FleetClient:
        self.timeout_s = timeout_s
        return self

    def __exit__(self, *_: object) -> None:
        """Stay open."""

    def close(self) -> None:
        super().__exit__(None, None, None)


@contextlib.contextmanager
def one_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetClient]:
    """Give all verbs within the block one client."""
    client = _LentClient(float(TIMEOUT[1]))
    with monkeypatch.context() as patched:
        patched.setattr(fleet_client, 'FleetClient', client)
        patched.setattr(graph_search, 'SETTLE_S', 0.05)
        try:
            yield client
        finally:
            client.close()
