# SPDX-License-Identifier: Apache-2.0
"""Create metric families with the prefix of this package."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

PREFIX = 'lerobot_serve'
NO_LABELS: Mapping[str, str] = {}


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


def refused_by_quota(
    node: str, refused: Mapping[tuple[str, str], int], labels: Mapping[str, str] = NO_LABELS
) -> CounterMetricFamily:
    """Return the refused requests of a node, by the rule of its quotas and the unit of a rate."""
    text = 'requests refused because a quota was used up'
    family = counter(f'{node}_quota_refused', text, [*labels, 'rule', 'unit'])
    for (rule, unit), count in sorted(refused.items()):
        family.add_metric([*labels.values(), rule, unit], count)
    return family


def histogram(name: str, text: str, labels: list[str] | None = None) -> HistogramMetricFamily:
    """Return a histogram family of durations; fill it from Histogram.cumulative."""
    return HistogramMetricFamily(f'{PREFIX}_{name}_seconds', text, labels=labels)
