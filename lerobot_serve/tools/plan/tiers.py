# SPDX-License-Identifier: Apache-2.0
"""
Which tier can drive at a control rate: a policy on the robot, at the site, or far away. Pure.

A tier that answers each step has to leave most of the step to the rest of the robot: its round
trip is at most a fifth of a step. A tier that sends chunks has to answer before half of a chunk is
played.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
import re

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.output.report import Part, Report, Table

STEP_SHARE, CHUNK_SHARE = 0.2, 0.5
LATENCY_LIMIT_MS = 60_000.0
FORM = re.compile(r'([A-Za-z][\w-]{0,31}):([0-9.]+)(?::([0-9.]+))?')
TIERS_LIMIT = 16
HEADS = ('tier', 'round trip', 'each step', 'chunks')


@dataclass(frozen=True, slots=True)
class Tier:
    """One place of a policy: its name, the time of an inference, and that of the network [ms]."""

    name: str
    inference_ms: float
    network_ms: float

    @property
    def round_trip_ms(self) -> float:
        return self.inference_ms + self.network_ms


@dataclass(frozen=True, slots=True)
class TierResult:
    """Whether a tier can drive, and up to which control rates [Hz]."""

    tier: Tier
    round_trip_ms: float
    can_answer_each_step: bool
    can_send_chunks: bool
    step_rate_hz: float
    chunk_rate_hz: float


def parse_tier(text: str) -> Tier:
    """Return the tier of NAME:INFERENCE_MS[:NETWORK_MS]. Raises ArgumentTypeError."""
    match = FORM.fullmatch(text)
    try:
        found = Tier(match[1], float(match[2]), float(match[3] or 0)) if match else None
    except ValueError:
        found = None
    if found is None or not 0 < found.inference_ms <= LATENCY_LIMIT_MS >= found.network_ms:
        raise argparse.ArgumentTypeError(
            f'must be NAME:INFERENCE_MS or NAME:INFERENCE_MS:NETWORK_MS, such as site:25:4, each '
            f'at most {LATENCY_LIMIT_MS:g} ms, got {text!r}'
        )
    return found


def judge(tiers: Sequence[Tier], fps: float, chunk_rows: int) -> list[TierResult]:
    """Return what each tier can do. Raises ParameterError for two of one name."""
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names) or len(names) > TIERS_LIMIT:
        raise ParameterError(
            f'--tier: each name once, and at most {TIERS_LIMIT}, got {", ".join(names)}'
        )
    return [_judged(tier, fps, chunk_rows) for tier in tiers]


def _judged(tier: Tier, fps: float, chunk_rows: int) -> TierResult:
    round_trip_s = tier.round_trip_ms / 1e3
    step_rate_hz = STEP_SHARE / round_trip_s
    chunk_rate_hz = CHUNK_SHARE * chunk_rows / round_trip_s
    return TierResult(
        tier,
        round_trip_ms=tier.round_trip_ms,
        can_answer_each_step=fps <= step_rate_hz,
        can_send_chunks=fps <= chunk_rate_hz,
        step_rate_hz=step_rate_hz,
        chunk_rate_hz=chunk_rate_hz,
    )


def tiers_report(found: Sequence[TierResult], fps: float, chunk_rows: int) -> Report:
    """Return the report; status 0 when a tier can drive."""
    rows = [
        (
            each.tier.name,
            f'{each.round_trip_ms:.1f} ms',
            _verdict(each.can_answer_each_step, each.step_rate_hz),
            _verdict(each.can_send_chunks, each.chunk_rate_hz),
        )
        for each in found
    ]
    parts: list[Part] = [
        f'a step of {fps:g} Hz takes {1e3 / fps:.1f} ms; a chunk of {chunk_rows} actions plays '
        f'for {chunk_rows / fps:.2f} s',
        '',
        Table(HEADS, rows, right=[1], least_widths=(0, 0, 19)),
        '',
        f'each step: the round trip is at most {100 * STEP_SHARE:g} % of a step',
        f'chunks: the round trip is at most {100 * CHUNK_SHARE:g} % of what a chunk plays',
    ]
    can_drive = any(each.can_answer_each_step or each.can_send_chunks for each in found)
    return Report({'tiers': list(map(asdict, found))}, parts, 0 if can_drive else 1)


def _verdict(is_possible: bool, rate_hz: float) -> str:
    return f'{"yes" if is_possible else "no"}, up to {rate_hz:.4g} Hz'
