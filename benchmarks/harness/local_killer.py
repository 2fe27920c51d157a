# SPDX-License-Identifier: Apache-2.0
"""
Kill one end of a local path after the other, at any instant, and print what the other end saw.

`python -m benchmarks.harness.local_killer KILLS SEED`: each time a process forks a server and a
client, which pass requests and replies as fast as they can, kills one of both after up to 5 ms,
and waits for the other, which ends once it has seen it. A client receives in a thread of its own,
or in the one that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import json
import os
from pathlib import Path
import random
import select
import signal
import sys
import threading
import time
import traceback

from lerobot_serve.local.access import SAME_USER
from lerobot_serve.local.endpoint import LocalEndpoint
from lerobot_serve.local.offer import decode, encode
from lerobot_serve.local.path import LocalPath

TOPIC = '/robot/action_chunk'
REQUEST, CHUNK = bytes(300_000), bytes(5_000)
LONGEST_S = 5e-3
LIMIT_S, LATE_S = 10.0, 0.01
# of a client that was killed before it came
ATTACH_LIMIT_S = 0.3


NEVER_MET, MET = b'-', b'+'
# of the kills, those that wait until both ends have met
LATE_SHARE = 0.8


def serve(offers: int, seen: int) -> None:
    """Answer requests until the client has gone; then write the time. Never returns."""

    def answer(raw: memoryview | bytes) -> None:
        endpoint.send(TOPIC, CHUNK)

    endpoint = LocalEndpoint(SAME_USER, answer, lambda _: None)
    stop = threading.Event()
    threading.Thread(target=endpoint.run, args=(stop,), daemon=True).start()
    os.write(offers, encode(endpoint.offer(TOPIC)))
    if not wait_for(lambda: endpoint.has_client(TOPIC), ATTACH_LIMIT_S):
        report(seen, NEVER_MET)
    if wait_for(lambda: not endpoint.has_client(TOPIC), LIMIT_S):
        report(seen)


def request(offers: int, seen: int, *, callers_receive: bool) -> None:
    """Send requests until the server has gone; then write the time. Never returns."""
    lost = threading.Event()

    def on_gone(_: bool) -> None:
        lost.set()
        wake.set()

    path = LocalPath(
        lambda _: wake.set(), on_gone, lifespan_s=LIMIT_S, callers_receive=callers_receive
    )
    wake = path.signal()
    offer = decode(os.read(offers, 4096))
    if offer:
        path.use(offer)
    if not path.is_connected:
        report(seen, NEVER_MET)
    os.write(seen, MET)
    # one in flight, as a robot has it
    while not lost.is_set():
        wake.clear()
        path.send(REQUEST)
        wake.wait(LATE_S)
    report(seen)


def wait_for(holds: Callable[[], bool], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.0005)
    return True


def report(seen: int, what: bytes = b'') -> None:
    os.write(seen, what or str(time.monotonic_ns()).encode())
    os._exit(0)


def start(work: Callable[[int, int], None], offers: int, seen: int) -> int:
    """Return the process that does `work`."""
    process = os.fork()
    if process == 0:
        try:
            work(offers, seen)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return process


def kill_once(chance: random.Random) -> float | str:
    """Return after how many milliseconds the other end saw it, or 'never met' or 'unseen'."""
    offers_out, offers_in = os.pipe()
    server_out, server_in = os.pipe()
    client_out, client_in = os.pipe()
    server = start(serve, offers_in, server_in)
    # the end of the server is the end of its pipe
    os.close(offers_in)
    ask = partial(request, callers_receive=chance.random() < 0.5)
    client = start(ask, offers_out, client_in)
    for each in (offers_out, server_in, client_in):
        os.close(each)
    if chance.random() < LATE_SHARE:
        select.select([client_out], [], [], LIMIT_S)
    time.sleep(chance.random() * LONGEST_S)
    killed, other, seen = chance.choice(
        ((server, client, client_out), (client, server, server_out))
    )
    os.kill(killed, signal.SIGKILL)
    begin_ns = time.monotonic_ns()
    os.waitpid(killed, 0)
    end_s = time.monotonic() + LIMIT_S
    while os.waitpid(other, os.WNOHANG) == (0, 0):
        if time.monotonic() > end_s:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
            break
        time.sleep(0.0002)
    told = os.read(seen, 64).removeprefix(MET)
    for each in (server_out, client_out):
        os.close(each)
    if told == NEVER_MET:
        return 'never met'
    return (int(told) - begin_ns) / 1e6 if told else 'unseen'


def left_over() -> dict[str, int]:
    """Return what processes leave behind: files, descriptors, shared memory."""
    memory = Path('/proc/meminfo').read_text()
    shared = next(line for line in memory.splitlines() if line.startswith('Shmem:'))
    return {
        'shm_files': len(os.listdir('/dev/shm')),
        'descriptors': len(os.listdir('/proc/self/fd')),
        'shared_kib': int(shared.split()[1]),
    }


def main(kills: int, seed: int) -> dict[str, object]:
    """Return the times, the other outcomes, and what is left over."""
    chance, before = random.Random(seed), left_over()
    times = [kill_once(chance) for _ in range(kills)]
    after = left_over()
    return {
        'seen_ms': [each for each in times if isinstance(each, float)],
        'never_met': times.count('never met'),
        'unseen': times.count('unseen'),
        'left': {name: after[name] - before[name] for name in before},
    }


if __name__ == '__main__':
    print(json.dumps(main(*map(int, sys.argv[1:]))))
