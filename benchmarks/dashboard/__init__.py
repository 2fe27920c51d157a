# SPDX-License-Identifier: Apache-2.0
"""The dashboard with a large fleet, see cost.py."""

from __future__ import annotations

ABOUT = 'what a dashboard costs with 300 robots and 20 viewers, and what robots notice of it'
PARTS = ('cost', 'router')
