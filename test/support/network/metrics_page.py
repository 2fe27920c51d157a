# SPDX-License-Identifier: Apache-2.0
"""What a node serves over HTTP: its metrics, and whether it is alive and ready."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def page(port: int, path: str) -> str:
    with urlopen(f'http://127.0.0.1:{port}{path}', timeout=10) as answer:
        return answer.read().decode()


def metrics(port: int, prefix: str = '') -> dict[tuple[str, ...], float]:
    """Return the value of every series by its name, without the prefix, and labels."""
    families = text_string_to_metric_families(page(port, '/metrics'))
    return {
        (sample.name.removeprefix(prefix), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
