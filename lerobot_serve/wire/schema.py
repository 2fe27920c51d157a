# SPDX-License-Identifier: Apache-2.0
"""
Enumerations, limits and version negotiation of the contract.

A client states the newest version it supports. A server accepts a version in its own range; both
then use the client's. Within a version, evolution is additive: new content goes into `extensions`;
unknown keys, unknown flag bits and trailing bytes are ignored.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

SCHEMA_VERSION = 1
SCHEMA_VERSION_MIN = 1

ID_LIMIT = 128
TASK_LIMIT = 4096
FINGERPRINT_LIMIT = 256
SLOT_LIMIT = 16
TEXT_LIMIT = 1024
KEY_LIMIT = 64

# slot of a router with one slot, and of a server without a router
SINGLE_SLOT = 'prod'
SLOTS = ('a', 'b', SINGLE_SLOT)


class MsgType(IntEnum):
    """RequestHeader.msg_type."""

    OBSERVATION = 1
    CHUNK = 2


class Flag(IntFlag):
    """RequestHeader.flags; bits without a name pass through unread."""

    NONE = 0
    EPISODE_START = 1
    POLICY_CHANGED = 2
    PREFIX_IGNORED = 4
    STATE_LOST = 8


class Codec(IntEnum):
    """CameraImage.codec."""

    JPEG = 1
    RAW = 2


class Status(IntEnum):
    """ActionChunk.status."""

    OK = 0
    BAD_OBSERVATION = 1
    NO_SESSION = 2
    POLICY_ERROR = 3
    NOT_FINITE = 4
    TOO_LATE = 5
    DRAINING = 6
    NO_SLOT = 7
    QUOTA = 8


class StateClass(IntEnum):
    """ServerStatus.state_class: the memory of a policy between requests."""

    CHUNK_STATELESS = 1
    NEEDS_HISTORY = 2
    RECURRENT = 3
    EXCLUSIVE = 4


class SchemaVersionRefused(ValueError):
    """The client's version is outside the server's range; `is_client_newer` gives the side."""

    def __init__(self, text: str, *, is_client_newer: bool) -> None:
        super().__init__(text)
        self.is_client_newer = is_client_newer


def negotiate_version(client_version: int) -> int:
    """Return the version that both sides use. Raises SchemaVersionRefused."""
    if client_version > SCHEMA_VERSION:
        raise SchemaVersionRefused(
            f'the client uses schema version {client_version}, this server supports '
            f'{SCHEMA_VERSION_MIN} to {SCHEMA_VERSION}; update the server or run an older client',
            is_client_newer=True,
        )
    if client_version < SCHEMA_VERSION_MIN:
        raise SchemaVersionRefused(
            f'the client uses schema version {client_version}, this server supports '
            f'{SCHEMA_VERSION_MIN} to {SCHEMA_VERSION}; update the client',
            is_client_newer=False,
        )
    return client_version


class Refusal(IntEnum):
    """OpenSession's code: why a session was not opened."""

    OK = 0
    SCHEMA_TOO_NEW = 1
    SCHEMA_TOO_OLD = 2
    BAD_NAME = 3
    ACTION_NAMES = 4
    STATE_NAMES = 5
    CAMERAS = 6
    FPS = 7
    TASK_PINNED = 8
    WRONG_POLICY = 9
    CAPACITY = 10
    NAME_IN_USE = 11
    NOT_READY = 12
    DRAINING = 13
    CODEC = 14
    EXCLUSIVE_IN_USE = 15
    UNREACHABLE = 16
    BAD_REQUEST = 17
