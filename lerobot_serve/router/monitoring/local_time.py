# SPDX-License-Identifier: Apache-2.0
"""Format the local time for texts; never measured or compared."""

from __future__ import annotations

from datetime import datetime


def format_local_time() -> str:
    """Return date and time of day with the offset, for example 2026-11-20 14:03:09+01:00."""
    return datetime.now().astimezone().isoformat(' ', 'seconds')
