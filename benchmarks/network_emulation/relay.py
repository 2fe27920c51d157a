# SPDX-License-Identifier: Apache-2.0
"""
The process that is a link: owns both networks and carries IP packets between their interfaces.

    python -m benchmarks.network_emulation.relay CONDITIONS SEED

CONDITIONS is JSON. Says one line of JSON once the link is up (where the networks are joined), or
one with the reason why there is none. Answers each line that it reads: `counts` with what became
of all packets, CONDITIONS by changing to them. Ends with its standard input.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
import json
import os
from pathlib import Path
import select
import subprocess
import sys
import time

from benchmarks.network_emulation import namespaces
from benchmarks.network_emulation.pipe import Conditions, NS_PER_S, Pipe

# of a range that is set aside for measurements
ROBOT, SERVER = '198.18.0.1', '198.18.0.2'
MTU_BYTES = 1500
# read in one go before others get their turn
BATCH = 32
LATE_NS = 1_000_000
IDLE_S = 1.0
CONGESTION_CONTROL = 'cubic'
CONTROL_FILE = '/proc/sys/net/ipv4/tcp_congestion_control'
IP_S = 10.0
IPV4, FIRST_MULTICAST = 4, 224


@dataclass
class LinkEnd:
    """An interface, and the pipe that begins there."""

    tun: int
    pipe: Pipe


def main() -> int:
    """Be a link until standard input ends."""
    conditions, seed = Conditions(**json.loads(sys.argv[1])), int(sys.argv[2])
    try:
        namespaces.own_user_namespace()
        robot, server = LinkSide.made(ROBOT, SERVER), LinkSide.made(SERVER, ROBOT)
    except OSError as error:
        print_json({'refused': str(error)})
        return 0
    ends = {
        'up': LinkEnd(robot.tun, Pipe(conditions, seed)),
        'down': LinkEnd(server.tun, Pipe(conditions, seed + 1)),
    }
    print_json(
        {
            'robot': robot.namespaces,
            'server': server.namespaces,
            'congestion_control': robot.congestion_control,
        }
    )
    with contextlib.suppress(KeyboardInterrupt):
        Relay(ends).run()
    return 0


@dataclass(frozen=True, slots=True)
class LinkSide:
    """
    A machine: where its network and its /dev/shm are joined, its interface, and how its TCP finds
    its pace.
    """

    namespaces: tuple[str, str]
    tun: int
    congestion_control: str

    @classmethod
    def made(cls, address: str, peer: str) -> LinkSide:
        """Make a network and a /dev/shm, and enter them. Raises OSError."""
        network = namespaces.new_network()
        tun = namespaces.open_tun(address, peer, MTU_BYTES)
        namespaces.own_shared_memory()
        mounts = os.open('/proc/self/ns/mnt', os.O_RDONLY)
        joined = f'/proc/{os.getpid()}/fd/{network}', f'/proc/{os.getpid()}/fd/{mounts}'
        return cls(joined, tun, choose_congestion_control(peer))


def choose_congestion_control(peer: str) -> str:
    """Choose what most systems use, and return what is used: without `ip` the kernel's default."""
    route = f'ip route replace {peer}/32 dev {namespaces.NAME} congctl {CONGESTION_CONTROL}'
    try:
        # the default itself can be changed only in the first network of a machine
        chosen = subprocess.run(route.split(), capture_output=True, timeout=IP_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        chosen = False
    return CONGESTION_CONTROL if chosen else Path(CONTROL_FILE).read_text().strip()


class Relay:
    """Carries packets between two interfaces. Main thread."""

    def __init__(self, ends: dict[str, LinkEnd]) -> None:
        self._ends = ends
        self._into = dict(zip(ends, reversed([end.tun for end in ends.values()]), strict=True))
        self._commands = sys.stdin.fileno()
        self._files = [*(end.tun for end in ends.values()), self._commands]

    def run(self) -> None:
        """Carry until standard input ends."""
        while True:
            readable, _, _ = select.select(self._files, [], [], self._wait_s())
            for name, end in self._ends.items():
                if end.tun in readable:
                    read_packets(end)
                self._deliver(name, end)
            if self._commands in readable:
                # one line at a time: who asks waits for the answer
                line = os.read(self._commands, 4096)
                if not line:
                    return
                self._obey(line.decode().strip())

    def _wait_s(self) -> float:
        """Return how long there is nothing to do but to wait for packets."""
        due = [end.pipe.next_ns for end in self._ends.values() if end.pipe.under_way]
        if not due:
            return IDLE_S
        return max(0.0, (min(due) - time.monotonic_ns()) / NS_PER_S)

    def _deliver(self, name: str, end: LinkEnd) -> None:
        now_ns, due_ns = time.monotonic_ns(), end.pipe.next_ns
        if due_ns is None or due_ns > now_ns:
            return
        # this machine was busy with something else
        late = now_ns - due_ns > LATE_NS
        for packet in end.pipe.arrived(now_ns):
            end.pipe.counts['late'] += late
            try:
                os.write(self._into[name], packet)
            except OSError:
                end.pipe.counts['refused_by_kernel'] += 1

    def _obey(self, line: str) -> None:
        if line != 'counts':
            conditions = Conditions(**json.loads(line))
            for end in self._ends.values():
                end.pipe.conditions = conditions
        print_json(
            {
                name: {**end.pipe.counts, 'under_way': end.pipe.under_way}
                for name, end in self._ends.items()
            }
        )


def read_packets(end: LinkEnd) -> None:
    """Read what waits at an interface and send it off."""
    now_ns = time.monotonic_ns()
    for _ in range(BATCH):
        try:
            packet = os.read(end.tun, MTU_BYTES)
        except BlockingIOError:
            return
        if is_carried(packet):
            end.pipe.offer(packet, now_ns)
        else:
            end.pipe.counts['not_carried'] += 1


def is_carried(packet: bytes) -> bool:
    """Return whether a packet is carried: no multicast, as through most WiFi and all clouds."""
    return packet[0] >> 4 == IPV4 and packet[16] < FIRST_MULTICAST


def print_json(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == '__main__':
    raise SystemExit(main())
