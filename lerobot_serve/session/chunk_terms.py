# SPDX-License-Identifier: Apache-2.0
"""How long the chunks of a session may be, and of which policies. Pure."""

from __future__ import annotations

from collections import deque

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.contract.schema import Flag

# between the policies of a router's slots
POLICY_SEPARATOR = '|'
# bound without an agreed size: longer than the chunk of any policy
MAX_CHUNK_ROWS = 1000
# a server swaps its policy a few times in a session; an older one is agreed again
MAX_DECLARED = 16


class ChunkTerms:
    """
    The terms of one session, and the policies that its server has declared as changed since. A
    router of several policies reports the smallest chunk size of them. Its owner guards it.
    """

    def __init__(self, policy: str = '', chunk_size: int = 0) -> None:
        self._policy = policy
        is_exact = chunk_size > 0 and POLICY_SEPARATOR not in policy
        self._max_rows = chunk_size if is_exact else MAX_CHUNK_ROWS
        self._declared: deque[str] = deque(maxlen=MAX_DECLARED)

    def check(self, chunk: Chunk) -> None:
        """Raise Malformed for a chunk that was not agreed."""
        if len(chunk.robot) > self._max_rows:
            raise Malformed(
                'too_long',
                f'the chunk holds {len(chunk.robot)} actions, {self._max_rows} were agreed',
            )
        if chunk.policy not in self._declared and not self._is_agreed(chunk):
            raise Malformed(
                'foreign_policy', f'reply of {chunk.policy!r}, {self._policy!r} was agreed'
            )

    def _is_agreed(self, chunk: Chunk) -> bool:
        """Return whether the chunk is of an agreed policy, or the server declares a change."""
        if not self._policy or chunk.header.flags & Flag.POLICY_CHANGED:
            return True
        *others, last = self._policy.split(POLICY_SEPARATOR)
        # several long names are truncated
        is_cut = len(self._policy) >= FINGERPRINT_LIMIT
        return chunk.policy in (*others, last) or (is_cut and chunk.policy.startswith(last))

    def accept(self, chunk: Chunk) -> None:
        """Note the policy of a chunk that is used, if the server declares it."""
        if chunk.header.flags & Flag.POLICY_CHANGED:
            self._declared.append(chunk.policy)
