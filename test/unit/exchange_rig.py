"""An exchange with a session that is open, in steps of 10 ms; for the tests of the exchange."""

from __future__ import annotations

import numpy as np
from requester_rig import Bench, CHUNK

from lerobot_serve.edge.exchange import Outcome
from lerobot_serve.edge.fake_link import answer
from lerobot_serve.edge.link import Agreement
from lerobot_serve.edge.queue.actions import Source
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import SCHEMA_VERSION

SERVER = '/policy_server'
# 8 rows, which the policy has 10 times as large
ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)
RTC = Agreement(SCHEMA_VERSION, chunk_size=8, supports_rtc=True)


def source(policy: str = 'act@0') -> Source:
    return Source(1, 0, 0, 'episode', 0, 'prod', policy)


def guided(agreement: Agreement = RTC, **pace: object) -> Bench:
    """Return a bench with a session that is open, and steps of 10 ms."""
    bench = Bench(**{'step_s': 0.01, 'append': False, 'rtc': True, **pace})
    begin_session(bench, agreement)
    return bench


def begin_session(bench: Bench, agreement: Agreement = RTC, server: str = SERVER) -> None:
    bench.exchange.next_epoch()
    bench.exchange.begin_session(server, agreement)


def fill(bench: Bench, rows: np.ndarray = ROWS, policy: str = 'act@0') -> None:
    bench.actions.append(rows, source(policy), mark=bench.actions.mark(), model=10 * rows)


def hear(bench: Bench, request: Observation, robot: np.ndarray = CHUNK, **changes) -> Outcome:
    """Let the answer to a request arrive now."""
    return bench.exchange.on_answer(answer(request, robot, **changes), bench.now_ns, bench.pace)
