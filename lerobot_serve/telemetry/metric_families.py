"""Making the families of metrics that an endpoint hands out, all under one prefix."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

PREFIX = 'lerobot_serve'


def counter(
    name: str, text: str, labels: list[str] | None = None, value: float | None = None
) -> CounterMetricFamily:
    """Return what only grows; with `value` where it has no labels."""
    return CounterMetricFamily(f'{PREFIX}_{name}', text, labels=labels, value=value)


def gauge(
    name: str, text: str, labels: list[str] | None = None, value: float | None = None
) -> GaugeMetricFamily:
    """Return what goes up and down."""
    return GaugeMetricFamily(f'{PREFIX}_{name}', text, labels=labels, value=value)


def histogram(name: str, text: str, labels: list[str] | None = None) -> HistogramMetricFamily:
    """Return durations; each `add_metric` takes what telemetry.buckets has."""
    return HistogramMetricFamily(f'{PREFIX}_{name}_seconds', text, labels=labels)
