# SPDX-License-Identifier: Apache-2.0
"""One recorded message, and the error of bags. Plain data; any thread."""

from __future__ import annotations

from typing import NamedTuple

PACKAGE = 'lerobot_serve_interfaces'
INTERFACES = f'{PACKAGE}/msg'
OBSERVATION = f'{INTERFACES}/Observation'
CHUNK = f'{INTERFACES}/ActionChunk'


class BagError(ValueError):
    """A bag that cannot be read or created; the text has path, reason and remedy."""


class BagMessage(NamedTuple):
    """
    One recorded message: the full names of topic and type, its reception time (nanoseconds since
    1970), its CDR bytes, and the source timestamp that its writer gave it, 0 for unknown (SQLite).
    """

    topic: str
    type: str
    stamp_ns: int
    data: bytes
    sent_ns: int = 0
