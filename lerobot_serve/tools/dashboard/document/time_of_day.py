# SPDX-License-Identifier: Apache-2.0
"""Times of day for people; nothing is measured or compared with them."""

from __future__ import annotations

from datetime import datetime, timezone


def time_of_day() -> str:
    """Return the local time of day, for example 18:02:11."""
    return datetime.now().astimezone().strftime('%H:%M:%S')


def instant() -> str:
    """Return date and time in UTC, for example 2026-11-23T18:00:00Z."""
    return datetime.now(timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')
