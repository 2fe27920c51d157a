# SPDX-License-Identifier: Apache-2.0
"""One recorded message, and what is wrong with a bag. Plain data; any thread."""

from __future__ import annotations

from typing import NamedTuple

PACKAGE = 'lerobot_serve_interfaces'
INTERFACES = f'{PACKAGE}/msg'
OBSERVATION = f'{INTERFACES}/Observation'
CHUNK = f'{INTERFACES}/ActionChunk'


class BagError(ValueError):
    """A bag that cannot be read or made; says which, why and what to do."""


class BagMessage(NamedTuple):
    """
    One message as it was recorded: the full names of topic and type, when the recorder received it
    (nanoseconds since 1970) and its CDR bytes.
    """

    topic: str
    type: str
    stamp_ns: int
    data: bytes
