# SPDX-License-Identifier: Apache-2.0
"""Errors of messages: received from a peer, or refused before sending."""


class Malformed(ValueError):
    """
    A received message that cannot be used.

    `reason` is one word of a fixed list, for counters; the text has the value found and the value
    allowed.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Unencodable(ValueError):
    """An outgoing message that violates the contract; raised before a byte is sent."""
