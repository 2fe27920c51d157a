# SPDX-License-Identifier: Apache-2.0
"""What each guard of a canary measures now, for operators. Pure functions."""

from __future__ import annotations

import math

from lerobot_serve.contract.records import GuardState
from lerobot_serve.router.canary.facts import Facts, percentage, SlotFacts
from lerobot_serve.router.canary.guards.alarms import GUARDED_SHARES, GuardedShare, ShareAlarms
from lerobot_serve.router.canary.guards.halts import halt_shares, halt_verdict, HaltVerdict
from lerobot_serve.router.canary.guards.rules import (
    LATENCY_FLOOR_MS,
    MIN_DIVERGENCE_SAMPLES,
)
from lerobot_serve.router.parameters import RouterParameters

SHARE_NAMES = {'failed_replies': 'failed_replies', 'trips': 'cage', 'fallbacks': 'fallback'}


def guard_values(
    facts: Facts, alarms: ShareAlarms, limits: RouterParameters
) -> tuple[GuardState, ...]:
    """
    Return the values of all guards from the facts of a step. A value without data is nan, the
    limit of a guard that is off is 0; `alarm` is the evidence as a share of what rolls back.
    """
    shares = [_share(kind, facts.candidate, alarms, limits) for kind in GUARDED_SHARES]
    failed, *of_commands = shares
    return (
        failed,
        _latency(facts, limits),
        *of_commands,
        _halted(facts, limits),
        _divergence(facts, limits),
    )


def _share(
    kind: GuardedShare, slot: SlotFacts, alarms: ShareAlarms, limits: RouterParameters
) -> GuardState:
    events, total = getattr(slot, kind.events), getattr(slot, kind.total)
    is_on = bool(getattr(limits, kind.limit))
    evidence = alarms.of[kind.events].strongest.evidence
    return GuardState(
        SHARE_NAMES[kind.events],
        '%',
        percentage(events, total) if total else math.nan,
        100 * kind.bound(alarms, limits) if is_on else 0.0,
        total,
        getattr(limits, kind.minimum),
        _ratio(evidence / kind.level) if is_on else 0.0,
    )


def _latency(facts: Facts, limits: RouterParameters) -> GuardState:
    champion = facts.champion.latency_ms_p95
    floor = LATENCY_FLOOR_MS if math.isnan(champion) else max(champion, LATENCY_FLOOR_MS)
    value, limit = facts.candidate.latency_ms_p95, limits.canary_max_latency_ratio * floor
    return GuardState(
        'latency',
        'ms',
        value,
        limit,
        facts.candidate.replies,
        limits.canary_minimum_replies,
        _above(value, limit),
    )


def _halted(facts: Facts, limits: RouterParameters) -> GuardState:
    shares = halt_shares(facts, limits)
    is_alarm = halt_verdict(shares, limits) is HaltVerdict.ROLL_BACK
    return GuardState(
        'halted',
        '%',
        shares.candidate_percent if shares.episodes or shares.count else math.nan,
        shares.limit_percent,
        shares.count,
        limits.canary_minimum_halts,
        1.0 if is_alarm else 0.0,
    )


def _divergence(facts: Facts, limits: RouterParameters) -> GuardState:
    return GuardState(
        'divergence',
        'spreads',
        facts.divergence,
        limits.canary_max_divergence,
        facts.divergence_samples,
        MIN_DIVERGENCE_SAMPLES,
        _above(facts.divergence, limits.canary_max_divergence),
    )


def _above(value: float, limit: float) -> float:
    return 1.0 if limit and value > limit else 0.0


def _ratio(value: float) -> float:
    return min(1.0, max(0.0, value))
