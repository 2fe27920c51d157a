"""A requester around a fake link and a clock that a test moves; for the tests of the requester."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
import threading

import numpy as np

from lerobot_serve.edge.fake_link import answer, FakeLink
from lerobot_serve.edge.history import History
from lerobot_serve.edge.inputs import Inputs
from lerobot_serve.edge.link import Pace
from lerobot_serve.edge.queue import ActionQueue
from lerobot_serve.edge.requester import Requester
from lerobot_serve.wire.observation import Observation

WAIT_S = 10.0
MS = 1_000_000
CHUNK = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
# so much buffer that it asks again as soon as it was answered
PACE = Pace(step_s=0.001, buffer_time_s=60.0, request_timeout_s=60.0, backoff_s=0.5, append=True)


class Bench:
    """A requester, its fake link, and a clock that stands still unless it is moved."""

    def __init__(self, *open_errors: Exception, client_id: str = 'robot_1', **pace: object):
        self.now_ns = 0
        self.link = FakeLink(*open_errors)
        self.inputs, self.actions = Inputs({'state': 10**18}), ActionQueue()
        self.history = History(self.inputs)
        self.inputs.deposit('state', np.zeros(3, np.float32), 0)
        self.requester = Requester(
            self.link,
            self.history,
            self.actions,
            client_id=client_id,
            task='fold the towel',
            action_count=3,
            first_epoch=2**32 - 1,
            pace=replace(PACE, **pace),
            clock=lambda: self.now_ns,
        )
        self.thread = threading.Thread(target=self.requester.run)

    @property
    def drops(self) -> dict[str, int]:
        return dict(self.requester.drops)

    def request(self) -> Observation:
        return self.link.request()

    def answer(self, request: Observation, robot: np.ndarray = CHUNK, **changes: object) -> None:
        self.requester.on_chunk(answer(request, robot, **changes))

    def hook_waits(self, hook: Callable[[float], None]) -> None:
        """Let the pauses of the thread pass at once, and call `hook` with each."""
        stop = self.requester._stop

        def wait(timeout: float) -> bool:
            hook(timeout)
            return stop.is_set()

        stop.wait = wait

    def close(self) -> None:
        self.requester.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@contextmanager
def starting() -> Iterator[Callable[..., Bench]]:
    """Give a function that starts a bench, given or made; each is closed at the end."""
    started = []

    def begin(bench: Bench | None = None, **pace: object) -> Bench:
        started.append(bench or Bench(**pace))
        started[-1].thread.start()
        return started[-1]

    yield begin
    for bench in started:
        bench.close()


def played(bench: Bench) -> list[list[float]]:
    rows = []
    while planned := bench.actions.take():
        rows.append(planned.action.tolist())
    return rows
