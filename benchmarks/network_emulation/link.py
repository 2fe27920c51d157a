# SPDX-License-Identifier: Apache-2.0
"""A link while it is needed, and processes on its two sides. Main thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from dataclasses import asdict
import json
from pathlib import Path
import select
import subprocess
import time

from benchmarks.harness.processes import child, end, module_command
from benchmarks.network_emulation.pipe import Conditions
from benchmarks.peers.peer import called, Peer
from benchmarks.peers.pinned_packages import PeerUnavailable
from lerobot_serve.entry_points import defer_signals
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes import end_with_parent

ANSWER_S, SETTLE_S, POLL_S = 20.0, 10.0, 0.02
Counts = dict[str, dict[str, int]]


class LinkUnavailable(Exception):
    """No link can be had here, and why."""


class Link:
    """
    A running relay. `robot` and `server` are commands that run another one on that side of it.
    """

    def __init__(self, relay: subprocess.Popen) -> None:
        """Raises LinkUnavailable and UserError."""
        self._relay = relay
        said = self._heard()
        if 'refused' in said:
            raise LinkUnavailable(
                f'this system allows no link between two networks: {said["refused"]}'
            )
        self.congestion_control: str = said['congestion_control']
        self.robot, self.server = (
            module_command('network_emulation.run_inside', relay.pid, *said[side])
            for side in ('robot', 'server')
        )

    def change(self, conditions: Conditions) -> None:
        """Be another kind of link from now on. Raises UserError."""
        self._ask(json.dumps(asdict(conditions)))

    def counts(self) -> Counts:
        """Return what became of the packets in each direction. Raises UserError."""
        return self._ask('counts')

    def settle(self) -> None:
        """Wait until nothing is on its way, with a bound. Raises UserError."""
        deadline = time.monotonic() + SETTLE_S
        while any(way['under_way'] for way in self.counts().values()):
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)

    def _ask(self, what: str) -> Counts:
        with contextlib.suppress(BrokenPipeError):
            print(what, file=self._relay.stdin, flush=True)
        return self._heard()

    def _heard(self) -> dict:
        readable, _, _ = select.select([self._relay.stdout], [], [], ANSWER_S)
        said = self._relay.stdout.readline() if readable else ''
        if not said:
            raise UserError('the relay between the two networks has ended')
        return json.loads(said)


@contextlib.contextmanager
def running_link(conditions: Conditions, seed: int) -> Iterator[Link]:
    """Give a link while it is needed. Raises LinkUnavailable and UserError."""
    command = module_command('network_emulation.relay', json.dumps(asdict(conditions)), seed)
    with defer_signals():
        relay = subprocess.Popen(
            end_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    try:
        yield Link(relay)
    finally:
        # that ends it
        with contextlib.suppress(BrokenPipeError):
            relay.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            relay.wait(ANSWER_S)
        end(relay)
        relay.stdout.close()


@contextlib.contextmanager
def running_endpoints(
    servers: dict[str, Sequence[str]],
    client: Sequence[str],
    folder: Path,
    environment: dict[str, str],
) -> Iterator[Peer]:
    """
    Run servers, each with the name of its log, and a client, which is told of a socket; give the
    client once it can be asked. Raises UserError.
    """
    with contextlib.ExitStack() as stack:
        beside = {}
        for name, command in servers.items():
            log = folder / f'{name}.log'
            beside[log] = stack.enter_context(child(list(command), log, environment))
        try:
            met = stack.enter_context(called(client, folder / 'robot.log', environment, beside))
        except PeerUnavailable as reason:
            raise UserError(str(reason)) from None
        yield met
