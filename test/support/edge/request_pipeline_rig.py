# SPDX-License-Identifier: Apache-2.0
"""A pipeline with a session that is open, in steps of 10 ms; for the tests of the pipeline."""

from __future__ import annotations

import numpy as np

from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.session.pipeline import ReplyResult
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve.edge.session.transport.transport import SessionAgreement
from support.edge.requester_rig import Bench, CHUNK

SERVER = '/policy_server'
# 8 rows, which the policy has 10 times as large
ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)
RTC = SessionAgreement(SCHEMA_VERSION, chunk_size=8, supports_rtc=True)


def source(policy: str = 'act@0') -> ChunkSource:
    return ChunkSource(1, 0, 0, 'episode', 0, 'prod', policy)


def guided(agreement: SessionAgreement = RTC, **settings: object) -> Bench:
    """Return a bench with a session that is open, and steps of 10 ms."""
    bench = Bench(**{'step_s': 0.01, 'merge_mode': 'replace', 'rtc': True, **settings})
    begin_session(bench, agreement)
    return bench


def begin_session(bench: Bench, agreement: SessionAgreement = RTC, server: str = SERVER) -> None:
    bench.pipeline.next_session_epoch()
    bench.pipeline.begin_session(server, agreement)


def fill(bench: Bench, rows: np.ndarray = ROWS, policy: str = 'act@0') -> None:
    bench.actions.append(rows, source(policy), mark=bench.actions.mark(), model=10 * rows)


def hear(bench: Bench, request: Observation, robot: np.ndarray = CHUNK, **changes) -> ReplyResult:
    """Let the answer to a request arrive now."""
    raw = reply_bytes(request, robot, **changes)
    return bench.pipeline.on_reply(raw, bench.now_ns, bench.settings).result
