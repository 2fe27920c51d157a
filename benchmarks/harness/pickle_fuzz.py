# SPDX-License-Identifier: Apache-2.0
"""
Read published exploits and mutated pickles, and print what happened as JSON:

    python -m benchmarks.harness.pickle_fuzz --count 1000000 --seed 1

The process is one of its own: an audit hook lists whatever the reader would import, open or run,
and the kernel reports the peak of memory. Progress goes to the standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import json
import os
from pathlib import Path
import random
import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness import exploits
from benchmarks.harness.peer_classes import (
    CHUNK_OF_SERVER,
    features,
    pickled,
    RemotePolicyConfig,
)
from benchmarks.harness.processes import memory_mib
from lerobot_serve.peer_formats.safe_pickle import (
    PickleRefused,
    read_actions,
    read_observation,
    read_policy_config,
)

# what a pickle must not cause; `object.__getattr__` and the like are not of it
FORBIDDEN = ('import', 'exec', 'compile', 'open', 'os.', 'subprocess.', 'socket.', 'ctypes.')
Reader = Callable[[bytes], object]
Seed = tuple[bytes, Reader]
READERS: tuple[Reader, ...] = (read_observation, read_policy_config, read_actions)
EXTREMES = (0, 1, 127, 128, 255)
SIZES = (b'\xff' * 4, b'\xff\xff\xff\x7f', b'\x00' * 4, b'\xff' * 8, b'\x00' * 7 + b'\x80')
OPCODES = b'().0125BCFGIJKLMNPQRSTUVX]abcdeghijlopqrstu}' + bytes(range(0x80, 0x99))
KEPT = 20
CHECKED_BYTES = 60 * 2**20
# pickles between two looks at the clock, and time between two lines of progress
BLOCK, PROGRESS_S = 1000, 10.0
# pickles after which memory must not grow any more
SETTLED = 10_000
# noticed, or the results of a run mean nothing
HARM: tuple[Reader, ...] = (
    lambda _: __import__('antigravity_that_is_not_there'),
    lambda _: compile('1', '', 'eval'),
    lambda _: open('/dev/null').close(),
    lambda _: [][1],
)


class Watch:
    """Notes forbidden events while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.events: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event.startswith(FORBIDDEN) and len(self.events) < KEPT:
            self.events.append(f'{event} {str(arguments)[:80]}')


def seeds() -> list[Seed]:
    """Return what is mutated, each with its reader: real messages, and a few exploits."""
    observation = exploits.plain_observation()
    config = RemotePolicyConfig('act', 'm', features(('a', 'b'), {'front': (4, 5, 3)}), 50)
    messages = [
        (pickled(message, protocol), reader)
        for message, reader in ((observation, read_observation), (config, read_policy_config))
        for protocol in (2, 4, 5)
    ]
    messages.append((CHUNK_OF_SERVER, read_actions))
    hostile = [each for each in exploits.all_exploits().values() if len(each) < 1000]
    return messages * 8 + [(each, read_observation) for each in hostile[::9]]


def mutated(pool: list[Seed], chance: random.Random) -> Seed:
    """Return one pickle with one to four changes, and its reader."""
    seed, reader = chance.choice(pool)
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 4))):
        chance.choice(CHANGES)(data, pool, chance)
    return bytes(data), reader


def set_byte(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), *EXTREMES))


def set_opcode(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    data[chance.randrange(len(data))] = chance.choice(OPCODES)


def insert_opcode(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = bytes((chance.choice(OPCODES),)) * chance.choice((1, 1, 2, 50))


def set_size(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    size, at = chance.choice(SIZES), chance.randrange(len(data))
    data[at : at + len(size)] = size


def cut(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randrange(1, 30)]
    if not data:
        data.append(0)


def repeat(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    at = chance.randrange(len(data))
    piece = data[at : at + chance.randrange(1, 30)]
    data[at:at] = piece * chance.choice((1, 2, 40))


def splice(data: bytearray, pool: list[Seed], chance: random.Random) -> None:
    (other, _), at = chance.choice(pool), chance.randrange(len(data))
    begin = chance.randrange(max(len(other), 1))
    data[at:at] = other[begin : begin + chance.randrange(1, 60)]


CHANGES: tuple[Callable[[bytearray, list[Seed], random.Random], None], ...] = (
    *(set_byte, set_byte, set_opcode, insert_opcode, set_size, cut, repeat, splice),
)


def attempts(count: int, seed: int) -> Iterator[Seed]:
    chance, pool = random.Random(seed), seeds()
    return (mutated(pool, chance) for _ in range(count))


def forget_peak() -> None:
    """Let the peak of memory begin at what is used now."""
    Path('/proc/self/clear_refs').write_text('5')


class Progress:
    """Counts what was read, prints a line now and then, and measures memory and rate."""

    def __init__(self, count: int, watch: Watch) -> None:
        self._count, self._watch = count, watch
        self._begin_cpu_s = time.process_time()
        self._printed_s = time.monotonic()
        forget_peak()
        self._before_mib = self._settled_mib = memory_mib(os.getpid())

    def on_mutated(self, done: int) -> None:
        if done == min(SETTLED, self._count):
            self._settled_mib = memory_mib(os.getpid())
        if done % BLOCK == 0 and time.monotonic() - self._printed_s >= PROGRESS_S:
            self._printed_s = time.monotonic()
            figures = self.figures(done)
            print(
                f'  {done} of {self._count} mutated pickles, '
                f'{figures["mutated_per_cpu_s"]} a second of CPU, '
                f'peak {figures["peak_mib"]:.1f} MiB, grown {figures["grown_mib"]:.1f} MiB, '
                f'{len(self._watch.events)} forbidden events',
                file=sys.stderr,
                flush=True,
            )

    def figures(self, done: int) -> dict[str, float]:
        """Return the rate, the peak of memory, and its growth after the first pickles."""
        cpu_s = time.process_time() - self._begin_cpu_s
        return {
            'mutated_per_cpu_s': round(done / cpu_s),
            'cpu_s': round(cpu_s),
            'peak_mib': memory_mib(os.getpid(), 'VmHWM') - self._before_mib,
            'grown_mib': memory_mib(os.getpid()) - self._settled_mib,
        }


def fuzz(count: int, seed: int) -> dict[str, Any]:
    """Read all exploits and `count` mutated pickles with each reader in turn."""
    np.seterr(all='ignore')
    hostile, watch = exploits.all_exploits(), Watch()
    check_watch(watch, HARM)
    found = {'exploits': len(hostile), 'mutated': 0, 'read': 0, 'refused': 0}
    crashed: list[str] = []
    chosen = attempts(count, seed)
    progress = Progress(count, watch)
    for reader in READERS:
        for data in hostile.values():
            read_once(reader, data, watch, crashed)
    for data, reader in chosen:
        outcome = read_once(reader, data, watch, crashed)
        found['mutated'] += 1
        found[outcome] += 1
        progress.on_mutated(found['mutated'])
    return {**found, 'crashed': crashed, 'executed': watch.events, **progress.figures(count)}


def check_watch(watch: Watch, harm: tuple[Reader, ...]) -> None:
    """Raise AssertionError unless what a pickle must not cause would be noticed."""
    crashed: list[str] = []
    for number, reader in enumerate(harm):
        noticed = len(watch.events) + len(crashed)
        read_once(reader, b'', watch, crashed)
        assert len(watch.events) + len(crashed) > noticed, f'harm {number} is not noticed'
    watch.events.clear()
    forget_peak()
    before_mib = memory_mib(os.getpid())
    assert len(b'x' * CHECKED_BYTES) and memory_mib(os.getpid(), 'VmHWM') - before_mib >= 50


def read_once(reader: Reader, data: bytes, watch: Watch, crashed: list[str]) -> str:
    """Return whether a pickle was read or refused; any other error is a crash."""
    watch.is_on = True
    try:
        reader(data)
    except PickleRefused:
        return 'refused'
    except BaseException as error:
        if len(crashed) < KEPT:
            crashed.append(f'{type(error).__name__}: {error} by {data.hex()}')
        return 'refused'
    finally:
        watch.is_on = False
    return 'read'


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.harness.pickle_fuzz')
    parser.add_argument('--count', type=int, default=1_000_000)
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(fuzz(options.count, options.seed)))


if __name__ == '__main__':
    main()
