# SPDX-License-Identifier: Apache-2.0
"""
Checks whether a policy is fast enough for its robot, and for how many robots. Pure functions.

Rule of thumb: a forward pass takes less than a fifth of the control period. A policy with chunks
of many rows may take longer, since the robot executes one chunk during the inference of the
next; the limit is half of the duration of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from lerobot_serve.server.sessions.session_validation import Demand, expected_rate_hz, max_robots
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, skipped, warning

PERIOD_SHARE_LIMIT = 0.2
CHUNK_SHARE_LIMIT = 0.5
# utilisation above which the queue wait grows faster than the load
UTILISATION = 0.7
FASTER = (
    'run it on a GPU (--device cuda:0), use fewer denoising steps or a smaller network, or stop '
    'other computations on this machine'
)
NO_RATE = (
    'the control rate is unknown: give --robot FILE, or --parameter trained_fps=N with the fps '
    'of the data set'
)


@dataclass(frozen=True, slots=True)
class PolicySpeed:
    """Times of forward passes, control rate and chunk size; 0 Hz means unknown."""

    p50_ms: float
    p99_ms: float
    runs: int
    fps: float
    chunk_size: int

    @property
    def period_ms(self) -> float:
        return 1e3 / self.fps

    @property
    def chunk_ms(self) -> float:
        return self.chunk_size * self.period_ms


def check_forward_time(pace: PolicySpeed) -> Finding:
    """Check the time of a forward pass against the control period."""
    name = 'time of a forward pass'
    measured = f'p50 {pace.p50_ms:.1f} ms, p99 {pace.p99_ms:.1f} ms of {pace.runs}'
    if not pace.fps > 0:
        return skipped(name, f'{measured}; {NO_RATE}')
    share = pace.p99_ms / pace.period_ms
    found = (
        f'{measured}; p99 is {share_text(share)} the control period of {pace.period_ms:.1f} ms '
        f'at {pace.fps:g} Hz (recommended: below {100 * PERIOD_SHARE_LIMIT:g} %)'
    )
    if share <= PERIOD_SHARE_LIMIT:
        return ok(name, found)
    if pace.chunk_size == 1:
        return failure(name, f'{found}; a chunk has one row, which inference delays', FASTER)
    if pace.p99_ms > CHUNK_SHARE_LIMIT * pace.chunk_ms:
        return failure(
            name,
            f'{found}, and more than half of the {pace.chunk_ms:.0f} ms of a chunk: the robot '
            'will stall',
            FASTER,
        )
    return warning(
        name,
        f'{found}; a chunk lasts {pace.chunk_ms:.0f} ms, longer than the inference',
        f'keep request_threshold_s of the edge above {pace.p99_ms / 1e3:.2f} s plus the network, '
        f'or: {FASTER}',
    )


def share_text(share: float) -> str:
    """Return a share of the period in percent, from 200 % on as a multiple."""
    return f'{share:.0f}x' if share >= 2 else f'{share:.0%} of'


def check_capacity(pace: PolicySpeed, *, exclusive: bool, network_s: float) -> Finding:
    """Compute how many robots one server of this policy on this machine can serve."""
    name = 'robots for one server'
    if not pace.fps > 0:
        return skipped(name, NO_RATE)
    chunk_s, service_s = pace.chunk_ms / 1e3, max(pace.p50_ms, 1e-3) / 1e3
    count = floor(UTILISATION * chunk_s / service_s)
    if count < 1:
        return failure(
            name,
            f'none: a chunk lasts {chunk_s:.2f} s and takes {service_s:.2f} s of inference',
            FASTER,
        )
    if exclusive:
        return ok(name, 'one: the policy serves one session at a time')
    admitted = max_robots(service_s, Demand(expected_rate_hz(chunk_s), chunk_s, network_s))
    return ok(
        name,
        f'about {count}: one request per robot and {chunk_s:.2f} s, {pace.p50_ms:.1f} ms each, '
        f'at {UTILISATION:.0%} utilisation; with admission: auto a server without measurements '
        f'admits {admitted}',
    )
