# SPDX-License-Identifier: Apache-2.0
"""A pipeline with a session that is open, in steps of 10 ms; for the tests of the pipeline."""

from __future__ import annotations

import numpy as np

from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import OpenSessionResponse
from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.session.transport.fake_transport import agreed, reply_bytes
from support.edge.requester_rig import Bench, CHUNK

SERVER = '/policy_server'
# 8 rows, which the policy has 10 times as large
ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)
RTC = agreed(chunk_size=8, supports_rtc=True)


def source(policy: str = 'act@0') -> ChunkSource:
    return ChunkSource(1, 0, 0, 'episode', 0, 'prod', policy)


def guided(agreement: OpenSessionResponse = RTC, **settings: object) -> Bench:
    """Return a bench with a session that is open, and steps of 10 ms."""
    bench = Bench(**{'step_s': 0.01, 'merge_mode': 'replace', 'rtc': True, **settings})
    begin_session(bench, agreement)
    return bench


def begin_session(
    bench: Bench, agreement: OpenSessionResponse = RTC, server: str = SERVER
) -> None:
    bench.pipeline.begin_session(server, bench.session.begin_request(), agreement)


def fill(bench: Bench, rows: np.ndarray = ROWS, policy: str = 'act@0') -> None:
    bench.actions.append(rows, source(policy), mark=bench.actions.mark(), model=10 * rows)


def hear(bench: Bench, request: Observation, robot: np.ndarray = CHUNK, **changes) -> str:
    """Let the answer to a request arrive now; return how the request ended, empty if not by it."""
    raw = reply_bytes(request, robot, **changes)
    end = bench.pipeline.on_reply(raw, bench.now_ns, bench.settings)
    return end.status if end else ''
