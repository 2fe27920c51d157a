# SPDX-License-Identifier: Apache-2.0
"""
Limits and version negotiation of the contract. Pure; any thread.

A client states the newest version it supports. A server accepts a version in its own range; both
then use the client's. Within a version, evolution is additive: new content goes into `extensions`;
unknown keys, unknown flag bits and trailing bytes are ignored.
"""

from __future__ import annotations

SCHEMA_VERSION = 1
SCHEMA_VERSION_MIN = 1

# bytes of a name or an id
ID_LIMIT = 128
TASK_LIMIT = 4096
FINGERPRINT_LIMIT = 256
SLOT_LIMIT = 16
TEXT_LIMIT = 1024
# of OpenSession's reason
REASON_LIMIT = 2048
KEY_LIMIT = 64

# slot of a router with one slot, and of a server without a router
SINGLE_SLOT = 'prod'
SLOTS = ('a', 'b', SINGLE_SLOT)


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
