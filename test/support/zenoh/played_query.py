# SPDX-License-Identifier: Apache-2.0
"""A call of a service over Zenoh, and what it got."""

from __future__ import annotations

from types import SimpleNamespace


class Query:
    """As zenoh.Query has it; `attachment` is the name of a request."""

    def __init__(self, key: str, raw: bytes = b'', attachment: bytes = b'goal') -> None:
        self.key_expr = key
        self.payload, self.attachment = (
            SimpleNamespace(to_bytes=lambda given=given: given) if given else None
            for given in (raw, attachment)
        )
        self.errors: list[bytes] = []
        self.replies: list[bytes] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def reply(self, key: str, raw: bytes) -> None:
        self.replies.append(raw)

    def reply_err(self, raw: bytes) -> None:
        self.errors.append(raw)
