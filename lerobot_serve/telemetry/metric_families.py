# SPDX-License-Identifier: Apache-2.0
"""Create metric families with the prefix of this package."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

PREFIX = 'lerobot_serve'


def counter(
    name: str, text: str, labels: list[str] | None = None, value: float | None = None
) -> CounterMetricFamily:
    """Return a counter family; `value` is for one without labels."""
    return CounterMetricFamily(f'{PREFIX}_{name}', text, labels=labels, value=value)


def gauge(
    name: str, text: str, labels: list[str] | None = None, value: float | None = None
) -> GaugeMetricFamily:
    """Return a gauge family; `value` is for one without labels."""
    return GaugeMetricFamily(f'{PREFIX}_{name}', text, labels=labels, value=value)


def histogram(name: str, text: str, labels: list[str] | None = None) -> HistogramMetricFamily:
    """Return a histogram family of durations; fill it from Histogram.cumulative."""
    return HistogramMetricFamily(f'{PREFIX}_{name}_seconds', text, labels=labels)
