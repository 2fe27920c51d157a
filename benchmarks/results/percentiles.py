# SPDX-License-Identifier: Apache-2.0
"""Ratios between two series of durations. Plain; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lerobot_serve.telemetry.durations import summarize

BLOCKS = 4


def ratio(values: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """
    Return the ratio of the medians, and the lowest and highest of it over parts of the run.

    The parts show how far a shared machine lets the figure be trusted. Empty without values.
    """
    if min(len(values), len(reference)) < BLOCKS:
        return {}
    pairs = zip(np.array_split(values, BLOCKS), np.array_split(reference, BLOCKS), strict=True)
    parts = [float(np.median(a) / np.median(b)) for a, b in pairs]
    whole = float(np.median(values) / np.median(reference))
    return {
        'median': round(whole, 3),
        'lowest_part': round(min(parts), 3),
        'highest_part': round(max(parts), 3),
    }


def pairwise_ratio(values: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Return the ratio of each part of a run to the part beside it: its median and its ends."""
    parts = [a / b for a, b in zip(values, reference, strict=True)]
    return {
        'median': round(float(np.median(parts)), 3),
        'lowest_part': round(min(parts), 3),
        'highest_part': round(max(parts), 3),
    }


def microseconds(series_ms: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return median and p99 of each series, in a unit in which one can read them."""
    figures = {name: summarize(values) for name, values in series_ms.items()}
    return {
        f'{name} [us]': f'{each["p50"] * 1000:.1f} (p99 {each["p99"] * 1000:.1f})'
        for name, each in figures.items()
    }
