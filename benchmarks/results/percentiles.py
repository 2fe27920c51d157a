"""What is said of a series of durations. Plain; any thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PERCENTILES = {'p50': 50, 'p95': 95, 'p99': 99}
BLOCKS = 4


def summarize(values_ms: Sequence[float]) -> dict[str, float]:
    """Return n, min, p50, p95, p99 and max; only n when there is no value."""
    if not len(values_ms):
        return {'n': 0}
    values = np.asarray(values_ms, float)
    percentiles = np.percentile(values, list(PERCENTILES.values()))
    figures = {
        'min': values.min(),
        **dict(zip(PERCENTILES, percentiles, strict=True)),
        'max': values.max(),
    }
    return {'n': len(values), **{name: round(float(v), 4) for name, v in figures.items()}}


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
