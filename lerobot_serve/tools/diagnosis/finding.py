# SPDX-License-Identifier: Apache-2.0
"""
The result of evaluating one cause, with its spans of time, and how much of a stall each of several
causes explains. Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# begin and end [s]
Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans in rising order that cover the same time."""
    merged: list[Span] = []
    for begin_s, end_s in sorted(span for span in spans if span[1] > span[0]):
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_s)
        else:
            merged.append((begin_s, end_s))
    return merged


def length_s(spans: Iterable[Span]) -> float:
    """Return the total length of disjoint spans."""
    return sum(end_s - begin_s for begin_s, end_s in spans)


def without(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return what is left of disjoint spans without others."""
    left = list(spans)
    for begin_s, end_s in removed:
        left = [
            piece
            for first_s, last_s in left
            for piece in ((first_s, min(last_s, begin_s)), (max(first_s, end_s), last_s))
            if piece[1] > piece[0]
        ]
    return left


def explained_shares(stalls: Iterable[Span], causes: Sequence[Iterable[Span]]) -> list[float]:
    """
    Return the share of the stalls that each cause explains. Each instant belongs to the first
    cause that covers it: what comes first in the order has caused what comes later.
    """
    left = union(stalls)
    total_s = length_s(left)
    shares = []
    for spans in causes:
        before_s, left = length_s(left), without(left, union(spans))
        shares.append((before_s - length_s(left)) / total_s if total_s else 0.0)
    return shares


@dataclass(frozen=True, slots=True)
class CauseFinding:
    """
    `is_cause` is None without evidence; `evidence` has the figures, or names the missing evidence;
    `spans` are when the cause kept the robot without actions.
    """

    is_cause: bool | None
    evidence: str
    spans: tuple[Span, ...] = ()
