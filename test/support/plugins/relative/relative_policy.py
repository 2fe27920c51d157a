# SPDX-License-Identifier: Apache-2.0
"""
A policy kind of another package: LeRobot's, with two processor steps that LeRobot does not know.

This folder on the PYTHONPATH is an installed package: its dist-info names `load`.
"""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.policies.base import LoadOptions, Policy
from lerobot_serve.policies.lerobot.compat import lerobot
from lerobot_serve.policies.lerobot.loader import load as load_lerobot


def load(loading: LoadOptions) -> Policy:
    """Return the policy in a directory whose processors name our steps. Raises PolicyError."""
    lerobot()
    import relative_steps  # noqa: F401  registers them

    return load_lerobot(replace(loading, trusted_packages=('relative_steps',)))
