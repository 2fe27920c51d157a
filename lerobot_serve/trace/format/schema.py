# SPDX-License-Identifier: Apache-2.0
"""
Version and limits of the trace format.

Evolution is additive: readers ignore unknown kinds and fields. The version rises only when an
existing field changes its meaning.
"""

from __future__ import annotations

from lerobot_serve.errors import UserError

SCHEMA_VERSION = 2
ROLES = ('edge', 'router', 'server')
# enough for two cameras with five raw 480x640 frames each, in base64
LINE_LIMIT = 16 << 20
# smaller parts contain little besides their headers
PART_LIMIT_MIN = 4096


class TraceError(UserError, ValueError):
    """A file that cannot be read as a trace; the text has path, reason and remedy."""
