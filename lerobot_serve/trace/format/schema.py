"""
The version and the bounds of a trace.

Evolution is additive: readers ignore kinds and fields that they do not know. The version rises
only when a field that is there changes its meaning.
"""

from __future__ import annotations

SCHEMA_VERSION = 1
ROLES = ('edge', 'router', 'server')
# two cameras of five raw 480x640 frames fit, in base64
LINE_LIMIT = 16 << 20
# smaller parts would hold little but their headers
PART_LIMIT_MIN = 4096


class TraceError(ValueError):
    """A file that cannot be read as a trace; says which, why and what to do."""
