# SPDX-License-Identifier: Apache-2.0
"""
Many robots of a peer in one process, each with one request in flight: at a rate, each at a point
of the period of its own, as a `LoadGenerator` paces this package's robots.

All robots live in an asyncio loop, which is a thread; one that can only block is given another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
import threading

import numpy as np

from benchmarks.peers.peer_process import Frames, frames, ImageSet, LOST, Orders, Trip

LOST_AFTER_S = 5.0
# asks once: the time to its chunk [ms], or why there is none
SendRequest = Callable[[], Awaitable[float | str]]
# opens a session with these pictures, as robot number so and so
OpenRobot = Callable[[int, Frames], Awaitable[SendRequest]]


@dataclass(slots=True)
class RobotCounts:
    """What became of a robot's requests; at `passed_over` turns it was still waiting."""

    sent: int = 0
    passed_over: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def note(self, outcome: float | str) -> None:
        """Count one answer, or what came instead; an answer that took too long came too late."""
        self.sent += 1
        if isinstance(outcome, float) and outcome > LOST_AFTER_S * 1e3:
            outcome = LOST
        if isinstance(outcome, str):
            self.failures[outcome] = self.failures.get(outcome, 0) + 1
        else:
            self.latencies_ms.append(outcome)


def background_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that runs between the orders too, so that connections are kept alive."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name='robots', daemon=True).start()
    return loop


def orders(open_robot: OpenRobot, loop: asyncio.AbstractEventLoop) -> Orders:
    """Return what a process of robots does: open and pace them."""
    robots: list[SendRequest] = []

    async def open_all(count: int, size: str) -> int:
        while len(robots) < count:
            robots.append(await open_robot(len(robots), frames(ImageSet.parse(size))))
        return len(robots)

    async def pace_all(seconds: float, rate_hz: float) -> list[dict[str, object]]:
        return [asdict(lived) for lived in await pace(robots, seconds, rate_hz)]

    return {
        'open': lambda *what: asyncio.run_coroutine_threadsafe(open_all(*what), loop).result(),
        'pace': lambda *what: asyncio.run_coroutine_threadsafe(pace_all(*what), loop).result(),
    }


async def pace(robots: Sequence[SendRequest], seconds: float, rate_hz: float) -> list[RobotCounts]:
    """Let every robot ask so many times a second, and wait for what is under way."""
    begin_s = asyncio.get_running_loop().time()
    turns = due_s(len(robots), seconds, rate_hz)
    return await asyncio.gather(
        *(run_robot(robot, begin_s + own) for robot, own in zip(robots, turns, strict=True))
    )


def due_s(robots: int, seconds: float, rate_hz: float) -> np.ndarray:
    """Return when each robot's turns are, a row each; the same in every run."""
    phases = np.sort(np.random.default_rng(1).uniform(0, 1 / rate_hz, robots))
    return phases[:, None] + np.arange(max(1, round(seconds * rate_hz))) / rate_hz


async def run_robot(robot: SendRequest, turns: np.ndarray) -> RobotCounts:
    """Ask at each turn, but for those that come while it waits."""
    lived = RobotCounts()
    for turn_s in turns:
        left_s = turn_s - asyncio.get_running_loop().time()
        # the turns of a robot that does not wait are ahead
        if lived.sent and left_s < 0:
            lived.passed_over += 1
            continue
        await asyncio.sleep(max(0.0, left_s))
        lived.note(await robot())
    return lived


def blocking(connect: Callable[[int], Trip]) -> OpenRobot:
    """Return how to open robots that block: each is a thread."""

    async def open_robot(number: int, pictures: Frames) -> SendRequest:
        pool = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        trip = await loop.run_in_executor(pool, connect, number)
        return lambda: loop.run_in_executor(pool, trip, pictures)

    return open_robot
