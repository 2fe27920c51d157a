# SPDX-License-Identifier: Apache-2.0
"""
Ports of Fast DDS whose owner is killed at an instant when it neither waits nor reads a message,
and processes that only send and only hear, without any code of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import signal
import subprocess
import sys

from lerobot_serve.shared_memory import damaged_ports, ports
from support.middleware.opened_port import layout_of, opened_port
from support.waiting import wait_until

TOPIC = 'steadily'
SENDS = f"""
import rclpy, time
from std_msgs.msg import UInt32
rclpy.init()
publisher = rclpy.create_node('sends').create_publisher(UInt32, '{TOPIC}', 10)
count = 0
while True:
    count += 1
    publisher.publish(UInt32(data=count))
    time.sleep(0.005)
"""
HEARS = f"""
import rclpy
from std_msgs.msg import UInt32
rclpy.init()
node = rclpy.create_node('hears')
node.create_subscription(UInt32, '{TOPIC}', lambda message: print(message.data, flush=True), 10)
rclpy.spin(node)
"""
# in a port: 1024 states of listeners, each beginning with its flags, and then the name of the
# domain; the first flag says that the state is in use
DOMAIN_NAME = b'fastrtps\0'
STATES, STATE_BYTES = 1024, 20
IS_IN_USE = 1
# of a lock that a process holds for which others wait
LOCKED = bytes((2, 0, 0, 0))


@contextlib.contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and kill it at the end."""
    running = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def kill_between_messages(victim: subprocess.Popen[str]) -> list[Path]:
    """Kill a process as if none of its listeners waited or read just now; return its ports."""
    victim.send_signal(signal.SIGSTOP)
    _wait_until_stopped(victim.pid)
    found = list(ports.ports_of(victim.pid))
    for file in found:
        _forget_what_listeners_do(file)
    victim.kill()
    victim.wait()
    return found


def _wait_until_stopped(pid: int) -> None:
    wait_until(
        lambda: all(_state(pid, thread) == 'T' for thread in os.listdir(f'/proc/{pid}/task')),
        'the process is stopped',
    )


def _state(pid: int, thread: str) -> str:
    try:
        text = Path(f'/proc/{pid}/task/{thread}/stat').read_text()
    except OSError:
        # it has ended since
        return 'T'
    return text.rpartition(')')[2].split()[0]


def _forget_what_listeners_do(file: Path) -> None:
    with opened_port(file) as (handle, memory):
        first = _first_state(memory)
        flags = memory[first]
        assert flags & IS_IN_USE and flags < 8, f'{file} has another layout'
        os.pwrite(handle, bytes((IS_IN_USE,)), first)


def leave_locked(file: Path, number: int) -> None:
    """Leave a port as a sender does that is killed while it holds the lock."""
    with opened_port(file) as (handle, memory):
        os.pwrite(handle, LOCKED, _first_state(memory) - damaged_ports.LOCK_BYTES)
        now = os.pread(handle, len(memory), 0)
        assert damaged_ports.is_locked(now, layout_of(now, number))


def leave_marked(file: Path, number: int) -> None:
    """Mark a port as damaged."""
    with opened_port(file) as (handle, memory):
        ports.clear_flag(handle, memory, layout_of(memory, number))


def _first_state(memory: bytes) -> int:
    """Return where the states of listeners begin."""
    return memory.index(DOMAIN_NAME) - STATES * STATE_BYTES
