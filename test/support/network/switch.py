# SPDX-License-Identifier: Apache-2.0
"""
The process that is a network: owns the namespaces of all machines and carries IP packets between
them, as a switch to which each machine has a link of its own.

    python -m support.network.switch ADDRESSES

ADDRESSES is JSON, {NAME: IPv4 address}, all in one /24. Prints one line of JSON when the network
is up, or one with the reason why there is none. Each line {NAME: CONDITIONS} on standard input
changes the link of a machine and is confirmed by the counts of its packets. Ends with its
standard input, and all namespaces with it once the processes in them have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import ipaddress
import json
import os
import select
import sys
import time

from benchmarks.network_emulation import namespaces
from benchmarks.network_emulation.pipe import Conditions, NS_PER_S, Pipe
from benchmarks.network_emulation.relay import BATCH, is_carried, MTU_BYTES

NETMASK = '255.255.255.0'
CABLE = Conditions(rate_mbit_s=1000, delay_ms=0, loss_percent=0, queue_ms=100)
IDLE_S = 1.0
# place of the destination in an IPv4 header
DESTINATION = slice(16, 20)


@dataclass
class Machine:
    """The interface of one machine, its link to and from the switch, and how it is joined."""

    address: bytes
    tun: int
    files: dict[str, str]
    up: Pipe = field(default_factory=lambda: Pipe(CABLE, 1))
    down: Pipe = field(default_factory=lambda: Pipe(CABLE, 2))

    @classmethod
    def made(cls, address: str) -> Machine:
        """Make a network and a /dev/shm, and enter them. Raises OSError."""
        network = namespaces.new_network()
        tun = namespaces.open_tun(address, address, MTU_BYTES, NETMASK)
        namespaces.own_shared_memory()
        mounts = os.open('/proc/self/ns/mnt', os.O_RDONLY)
        files = {
            'network': f'/proc/{os.getpid()}/fd/{network}',
            'mounts': f'/proc/{os.getpid()}/fd/{mounts}',
        }
        return cls(ipaddress.IPv4Address(address).packed, tun, files)

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        return self.up, self.down


class Switch:
    """Carries packets until standard input ends. Main thread."""

    def __init__(self, machines: dict[str, Machine]) -> None:
        self._machines = machines
        self._by_address = {machine.address: machine for machine in machines.values()}
        self._commands = sys.stdin.fileno()
        self._files = [*(machine.tun for machine in machines.values()), self._commands]

    def run(self) -> None:
        while True:
            readable, _, _ = select.select(self._files, [], [], self._wait_s())
            for machine in self._machines.values():
                if machine.tun in readable:
                    read_packets(machine)
            self._carry(time.monotonic_ns())
            if self._commands in readable:
                line = os.read(self._commands, 4096)
                if not line:
                    return
                self._change(json.loads(line))

    def _carry(self, now_ns: int) -> None:
        for machine in self._machines.values():
            for packet in machine.up.arrived(now_ns):
                to = self._by_address.get(packet[DESTINATION])
                if to:
                    to.down.offer(packet, now_ns)
        for machine in self._machines.values():
            for packet in machine.down.arrived(now_ns):
                os.write(machine.tun, packet)

    def _wait_s(self) -> float:
        due = [
            pipe.next_ns
            for machine in self._machines.values()
            for pipe in machine.pipes
            if pipe.next_ns is not None
        ]
        if not due:
            return IDLE_S
        return max(0.0, (min(due) - time.monotonic_ns()) / NS_PER_S)

    def _change(self, changes: dict[str, dict[str, float]]) -> None:
        for name, conditions in changes.items():
            for pipe in self._machines[name].pipes:
                pipe.conditions = Conditions(**conditions)
        print_json(
            {name: [dict(p.counts) for p in self._machines[name].pipes] for name in changes}
        )


def read_packets(machine: Machine) -> None:
    """Read what waits at an interface and send it to the switch."""
    for _ in range(BATCH):
        try:
            packet = os.read(machine.tun, MTU_BYTES)
        except BlockingIOError:
            return
        if is_carried(packet):
            machine.up.offer(packet, time.monotonic_ns())


def print_json(what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> int:
    try:
        namespaces.own_user_namespace()
        machines = {
            name: Machine.made(address) for name, address in json.loads(sys.argv[1]).items()
        }
    except OSError as error:
        print_json({'refused': str(error)})
        return 0
    print_json({name: machine.files for name, machine in machines.items()})
    Switch(machines).run()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
