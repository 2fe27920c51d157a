# SPDX-License-Identifier: Apache-2.0
"""The parameters of the HTTP endpoint, which are the same in every node."""

from __future__ import annotations

from lerobot_serve.parameters import parameter


def metrics_port() -> int:
    """Return the parameter `metrics_port`."""
    return parameter(
        0,
        'port of the HTTP endpoint with /metrics, /healthz and /readyz; 0 disables it',
        low=0,
        high=65535,
    )


def metrics_address() -> str:
    """Return the parameter `metrics_address`."""
    return parameter('127.0.0.1', 'address of the HTTP endpoint; 0.0.0.0 for all interfaces')
