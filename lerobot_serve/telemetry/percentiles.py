# SPDX-License-Identifier: Apache-2.0
"""Compute percentiles of a series of durations. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PERCENTILES = {'p50': 50, 'p95': 95, 'p99': 99}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile, interpolated between the nearest values; None without values."""
    return float(np.percentile(np.asarray(values, float), percent)) if len(values) else None


def summarize(values_ms: Sequence[float]) -> dict[str, float]:
    """Return n, min, p50, p95, p99 and max; only n for an empty series."""
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
