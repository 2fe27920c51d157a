# SPDX-License-Identifier: Apache-2.0
"""A server and a client of a peer, each a process of its own. Main thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
import os
from pathlib import Path
import socket
import subprocess
import tempfile
import time

from benchmarks.harness.processes import child, free_ports, LOCALHOST, module_command
from benchmarks.peers.peer_process import Address, ImageSet, READY_S, write_line
from benchmarks.peers.pinned_packages import install, PeerUnavailable
from benchmarks.results.report import Case

ANSWER_S, POLL_S = 30.0, 0.5


class Peer:
    """A peer's client, which waits to be told what to do, and both processes."""

    def __init__(
        self, link: socket.socket, server: subprocess.Popen, client: subprocess.Popen
    ) -> None:
        link.settimeout(ANSWER_S)
        self._link, self._lines = link, link.makefile('rw')
        self.server, self.client = server, client
        self.versions: dict[str, str] = json.loads(self._lines.readline())

    def trip_ms(self, size: ImageSet) -> float | None:
        """Return the time of one trip, None when it was lost; so are all after the peer's end."""
        outcome = self.order('trip', str(size))
        return outcome if isinstance(outcome, float) else None

    def order(self, *what: object, within_s: float = ANSWER_S) -> object:
        """Return what the client answers, None when it does not; then it is asked no more."""
        if self._lines.closed:
            return None
        self._link.settimeout(within_s)
        try:
            write_line(self._lines, what)
            said = self._lines.readline()
        except OSError:
            said = ''
        if not said:
            self.close()
        return json.loads(said) if said else None

    def close(self) -> None:
        """Hang up, which ends the client."""
        with contextlib.suppress(OSError):
            self._lines.close()
        self._link.close()


def start_peers(
    stack: contextlib.ExitStack, wanted: Mapping[str, str], role: str, folder: Path
) -> tuple[dict[str, Peer], list[Case]]:
    """
    Return those of the peers (name -> module) that could be started, and a case in words for each
    of the others.
    """
    peers, left_out = {}, []
    for name, peer in wanted.items():
        try:
            packages = install(peer, folder / 'peers')
            peers[name] = stack.enter_context(running_peer(peer, packages, folder, role=role))
        except PeerUnavailable as reason:
            left_out.append(Case(f'{name} left out', {'reason': str(reason)}))
    return peers, left_out


def versions(peers: Mapping[str, Peer]) -> dict[str, str]:
    """Return what the peers said they run."""
    return {name: said for peer in peers.values() for name, said in peer.versions.items()}


@contextlib.contextmanager
def running_peer(
    peer: str,
    packages: Path,
    folder: Path,
    *,
    role: str = 'client',
    host: str = LOCALHOST,
    server_prefix: Sequence[str] = (),
    client_prefix: Sequence[str] = (),
) -> Iterator[Peer]:
    """
    Start a peer's server and client, and give them once the client can be asked. `host` is the
    server's address; the prefixes stand before the two commands, for example
    ('ip', 'netns', 'exec', 'far'), and become the process that they run. Raises PeerUnavailable.
    """
    address, log = free_address(host), folder / f'{peer}_server.log'
    command = peer_command(peer, packages, 'server', host, address.port)
    with (
        child([*server_prefix, *command], log, environment_of(packages)) as server,
        running_client(
            peer, packages, folder, address, role=role, prefix=client_prefix, beside={log: server}
        ) as met,
    ):
        yield met


@contextlib.contextmanager
def running_client(
    peer: str,
    packages: Path,
    folder: Path,
    address: Address,
    *,
    role: str = 'client',
    name: str = '',
    prefix: Sequence[str] = (),
    beside: Mapping[Path, subprocess.Popen] | None = None,
) -> Iterator[Peer]:
    """
    Start a peer's client of a server that runs, and give it once it can be asked. `beside` has the
    server's process by its log, where it is of the peer; `name` is of the log. Raises
    PeerUnavailable.
    """
    log = folder / f'{name or f"{peer}_{role}"}.log'
    command = [*prefix, *peer_command(peer, packages, role, address.host, address.port)]
    with called(command, log, environment_of(packages), beside or {}) as met:
        yield met


@contextlib.contextmanager
def called(
    command: Sequence[str],
    log: Path,
    environment: dict[str, str],
    beside: Mapping[Path, subprocess.Popen],
) -> Iterator[Peer]:
    """
    Start a client, whose last argument is a socket, and give it once it has called there. `beside`
    has the processes that must run meanwhile, the server first. Raises PeerUnavailable.
    """
    with contextlib.ExitStack() as stack:
        # in a short path: the name of a socket is bounded
        place = stack.enter_context(tempfile.TemporaryDirectory())
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        door.bind(f'{place}/door')
        door.listen()
        client = stack.enter_context(child([*command, f'{place}/door'], log, environment))
        processes = {**beside, log: client}
        server = next(iter(processes.values()))
        met = Peer(accept_client(door, processes), server, client)
        stack.callback(met.close)
        yield met


def peer_command(peer: str, packages: Path, *arguments: object) -> list[str]:
    """Return the command of a peer's process. LeRobot writes logs below the folder it runs in."""
    return ['env', f'--chdir={packages}', *module_command(f'peers.{peer}', *arguments)]


def environment_of(packages: Path) -> dict[str, str]:
    """Return the environment in which a peer finds its packages."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(packages), str(root), os.environ.get('PYTHONPATH', '')])
    return {**os.environ, 'PYTHONPATH': path}


def accept_client(
    door: socket.socket, processes: Mapping[Path, subprocess.Popen]
) -> socket.socket:
    """Return the client's call. Raises PeerUnavailable when it does not come."""
    door.settimeout(POLL_S)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            return door.accept()[0]
        for log, process in processes.items():
            if process.poll() is not None:
                raise PeerUnavailable(
                    f'{log.stem} ended with status {process.returncode}; see {log}'
                )
    raise PeerUnavailable(
        f'it was not up after {READY_S:g} s; see {", ".join(map(str, processes))}'
    )


def free_address(host: str = LOCALHOST) -> Address:
    """Return an address that nobody has at this moment."""
    return Address(host, *free_ports(1))
