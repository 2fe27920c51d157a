# SPDX-License-Identifier: Apache-2.0
"""Create metric families with the prefix of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from lerobot_serve.zenoh.credentials import check_credentials

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


def keys_expiry(folder: str) -> GaugeMetricFamily:
    """
    Return when the keys of a node end, as it has read them: a link that is open continues, and
    none opens again. Raises UserError for keys with which none opens now.
    """
    expires = check_credentials(Path(folder), may_listen=False).expires
    text = 'when the certificate of zenoh_keys or its authority ends, in seconds since 1970'
    return gauge('keys_expire_timestamp_seconds', text, value=expires.timestamp())


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
